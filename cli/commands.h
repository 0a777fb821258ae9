/* Every subcommand's description; each lives in its own cmd_*.c. */
#pragma once

#include "cli/options.h"

extern const command cmd_run, cmd_serve, cmd_node, cmd_status, cmd_keygen, cmd_tokenize, cmd_template, cmd_gguf, cmd_cache,
    cmd_completion, cmd_man;
