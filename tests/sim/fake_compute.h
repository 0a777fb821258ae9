/* A pl_compute in virtual time over the hash model: the unmodified node runs over it in simulation.
 *
 * Jobs take the time that their bytes, rows and layers cost and answer in order. The disk is a struct of its own,
 * because it survives the process. Threads: the loop's thread. */
#pragma once

#include "node/compute.h"
#include "tests/sim/hash_model.h"
#include "transport/loop.h"

/* Blobs on a machine's disk, whole and partial. */
typedef struct fake_blob {
    pl_hash hash;
    uint8_t *data;
    uint64_t have, total;
} fake_blob;
typedef struct fake_disk {
    fake_blob *blobs;
    size_t n;
    uint64_t bytes_put; /* that came over the network */
} fake_disk;
/* Puts a whole blob there, as on the machine that has the model's file. */
void fake_disk_add(fake_disk *d, const pl_hash *hash, pl_bytes data);
void fake_disk_fini(fake_disk *d);

typedef struct fake_compute_options {
    fake_disk *disk;
    const char *profile; /* NULL: "hash-1" */
    uint64_t known_checksum;
    uint64_t memory_total;
    uint64_t run_ns;       /* per micro-batch; 0: 200 us */
    uint64_t row_layer_ns; /* per row and layer; 0: 20 us */
    uint64_t put_ns;       /* per piece; 0: 50 us */
    uint64_t load_ns;      /* per load; 0: 2 ms */
} fake_compute_options;

/* NULL when there is no memory. */
pl_compute *fake_compute_new(pl_loop *loop, const fake_compute_options *options);
/* While true no job finishes: the process does not get a processor. */
void fake_compute_pause(pl_compute *c, bool paused);
/* The next run fails with this status, once. */
void fake_compute_fail_run(pl_compute *c, pl_status status);
/* Bytes that the loaded stage takes, 0 without one. */
uint64_t fake_compute_stage_bytes(const pl_compute *c);
