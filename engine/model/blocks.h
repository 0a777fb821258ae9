/* The parts that decoders are made of. Each records nodes; a NULL tensor passes through to the end (op.h).
 * il counts from the first layer of the build. What a part does follows from the weights that are there, from the
 * architecture's row and from the hparams. */
#pragma once

#include "engine/model/arch.h"

/* x [n_embd, n_rows]: the rows of the embedding, or what the stage before sent. */
pl_tensor *pl_block_embed(pl_build *b);

/* The layer's weight w times x, plus its bias [m] where the file has one. bias may be PL_W_NONE. */
pl_tensor *pl_block_linear(pl_build *b, int32_t il, pl_slot w, pl_slot bias, pl_tensor *x);

/* x normalised along its rows; as it is where the layer has no such weight. bias may be PL_W_NONE. */
pl_tensor *pl_block_norm(pl_build *b, int32_t il, pl_slot w, pl_slot bias, pl_tensor *x);

/* Causal self-attention with rotary positions over the paged cache, of x [n_embd, n_rows], already normalised.
 * Gives [n_embd, n_rows]; of only the rows in b->io.out_ids when last and some rows are not wanted: what the others
 * would give is read by nobody. With last and no row wanted, gives the store into the cache and sets *stored_only. */
pl_tensor *pl_block_attention(pl_build *b, int32_t il, pl_tensor *x, bool last, bool *stored_only);

/* A mixture of experts (Shazeer et al. 2017): for each row the router's best, weighted, and the shared one. */
pl_tensor *pl_block_experts(pl_build *b, int32_t il, pl_tensor *x);

/* The feed-forward part of the architecture's kind, or of experts in layers that have them. */
pl_tensor *pl_block_ffn(pl_build *b, int32_t il, pl_tensor *x);

/* Whether il is the last layer before the head, where only rows that want logits go on. */
bool pl_block_is_last(const pl_build *b, int32_t il);
/* x [m, n_rows] -> [m, n_out]: the rows that want logits. */
pl_tensor *pl_block_wanted_rows(pl_build *b, pl_tensor *x);

/* Logits [n_vocab, n_out] of x [n_embd, n_out]: the last norm, and the output matrix or the tied embedding. Only the
 * norm, where the model has one, when b asks for embeddings. */
pl_tensor *pl_block_head(pl_build *b, pl_tensor *x);

/* A whole encoder: each layer's two parts are added to what they read, and the sum is normalised. */
pl_tensor *pl_build_encoder(pl_build *b);

/* A whole decoder, for a pl_arch's build: embedding, layers of attention and feed-forward with a norm before, behind or
 * both, each added to the residual stream, and head. */
pl_tensor *pl_build_decoder(pl_build *b);
