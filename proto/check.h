/* What holds of every message before anything is used: the rules below, field by field. After PL_OK a reader may
 * convert any number to int32_t where its bound says so, index with it up to the given limits, add the sizes of one
 * message, and print any text.
 *
 * - Everywhere: text is valid UTF-8 without control characters, at most 256 bytes (request ids, names, addresses) or
 *   4096 (reasons; these may have tabs and line ends). Keys and hashes are 32 bytes. Byte counts of memory and files
 *   are at most 2^56. Floats are finite. Sequence numbers are in [0, n_seqs), block ids in [0, n_blocks), token ids
 *   in [0, n_vocab), layers at most n_layer. A message has no parts, but for Frame and Blob.
 * - Envelope: one known body. epoch is not 0 in Load, Progress, Ready, Frame, Result, Credit and LinkState.
 * - Hello: role is known; protocol >= 1 (whether it is ours is for the reader, who can answer); n_threads <= 65536;
 *   at most 256 types, each < 1024; at most 256 archs; at most 64 devices; read_bytes_s and macs_s >= 0.
 * - Welcome: 1 ms <= heartbeat_ns < dead_after_ns <= 1 day; lease_ns <= 30 days.
 * - Heartbeat: stats.memory_bytes. The times are the peer's word: differences of them may come out negative.
 * - Load: header_bytes >= 1; layer_first < layer_end <= n_layer; stage < n_stages <= n_layer; the first stage and no
 *   other begins at layer 0, the last and no other ends at n_layer; upstream is absent on the first and on no other,
 *   downstream on the last; n_blocks, n_ctx, n_seqs, n_rows and credits in [1, limit]; kv_type and kv_type_v are of f32 f16
 *   q4_0 q8_0 bf16, wire_type one of f32 f16 bf16 q8_0; 1 to n_tensors tensors, their indices ascending and below
 *   n_tensors.
 * - Neighbour: key is 32 bytes or empty; with dial, address is not empty.
 * - Progress: phase is known; done_bytes <= total_bytes.
 * - Sequence: prompt and emitted together at most n_ctx tokens; params present; at most 64 adapters; sampler_state
 *   at most 4096 bytes; max_tokens < 2^31; at most 1024 stop_tokens.
 * - Params: temperature, top_p, min_p, repeat_penalty, dynatemp_*, dry_multiplier, dry_base and mirostat_* in
 *   [0, 1e6]; typical_p and xtc_* in [0, 1]; top_n_sigma, frequency_penalty and presence_penalty in [-1e6, 1e6];
 *   top_k, repeat_last_n and dry_last_n >= -1; dry_allowed_length >= 0; mirostat <= 2; n_logprobs in [-1, n_logprobs].
 *   At most 32 dry_breakers of 1 to 64 bytes, 16 samplers, 1024 entries in bias_token and as many in bias, these
 *   within 1e30 or -infinity; grammar at most 256 KiB. Whether a sampler is known and a grammar is one is for the
 * stage.
 * - KvOp: kind is known; seq in range. Only OPEN has a sequence, and always. Only EXTEND and FORK have blocks,
 *   EXTEND at least one. FORK: src in range and not seq. FORK, TRUNCATE: n_pos in [0, n_ctx]. Elsewhere src and
 *   n_pos are 0.
 * - TensorDesc: type is a wire type; 1 to 4 dimensions, each < 2^31, the first a multiple of the type's block; their
 *   product in bytes is exactly the part's size.
 * - Frame: id >= 1; at most n_ops ops; at most n_rows rows, and as many entries in seq and token, n_pos_per_row (1
 *   to 4) times as many in pos; pos in [0, n_ctx); token in [-1, n_vocab); logits ascending, each below the rows;
 *   one TensorDesc per part. A tensor "hidden" is [n_embd, rows].
 * - Result: frame >= 1; at most n_rows tokens.
 * - Token: pos in [0, n_ctx]; logprob and each top_logprob at most 0, or a little above as rounding may give it
 *   (1e-3), and -infinity is allowed; as many top as top_logprob, at most n_logprobs; sampler_state at most 4096
 *   bytes.
 * - Credit: 1 <= frames <= credits.
 * - BlobGet: 1 <= size <= blob_bytes.
 * - Blob: without failure one part of 1 to blob_bytes bytes, inside total at offset; with failure no part.
 * - Failure: status is a pl_status and not PL_OK.
 *
 * Threads: any; nothing is kept. */
#pragma once

#include "engine/base/status.h"
#include "proto/paceline.pb-c.h"
#include <stdbool.h>
#include <stdint.h>

/* Upper bounds, 0: the default beside each. A node sets them from its Load and its model's header, so that ids can be
 * used as indices. */
typedef struct pl_check_limits {
    int32_t n_layer;    /* 4096: several times today's deepest */
    int32_t n_tensors;  /* 65536: a few dozen per layer of the deepest */
    int32_t n_ctx;      /* 16 Mi positions */
    int32_t n_seqs;     /* 65536 */
    int32_t n_rows;     /* 65536: a micro-batch is bounded by memory long before */
    int32_t n_blocks;   /* 16 Mi: pages of the KV cache */
    int32_t n_vocab;    /* 2^31 - 1 */
    int32_t n_embd;     /* any: width of "hidden" */
    int32_t n_ops;      /* 65536: KV operations of one frame */
    int32_t n_logprobs; /* 20: what a request may ask for */
    int32_t credits;    /* 1024 */
    int32_t blob_bytes; /* 64 MiB: one piece of a blob */
} pl_check_limits;

/* Checks m by the rules above. part_sizes: of the n_parts raw parts behind the header; limits NULL: the defaults.
 * PL_ERR_FORMAT names the message, the field and the numbers; PL_ERR_UNSUPPORTED: a body that this build does not know.
 */
PL_MUST_CHECK pl_status pl_envelope_check(const Paceline__Envelope *m, const size_t *part_sizes, size_t n_parts,
                                          const pl_check_limits *limits, pl_error *err);

/* Bytes of a tensor of this wire type and shape, as TensorDesc's rule computes them; false when the type is no wire
 * type, the shape breaks the rule, or the product does not fit. */
bool pl_wire_bytes(uint32_t type, const uint64_t *ne, size_t n_ne, size_t *out);
