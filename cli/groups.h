/* The groups of options that several commands share. */
#pragma once

#include "cli/options.h"

extern const option_group group_model, group_prompt, group_sampling, group_cluster, group_node, group_inspect, group_graph, group_keys, group_http,
    group_general;
