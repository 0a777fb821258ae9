/* The header of every message: one Envelope, to bytes and back.
 *
 * Format:   paceline.proto, proto3.
 * Threads:  a pl_envelope belongs to one thread at a time.
 * Lifetime: what an envelope points to lives in its own arena, until it is unpacked into again or finished. */
#pragma once

#include "engine/base/arena.h"
#include "proto/paceline.pb-c.h"

/* The protocol number in Hello. */
#define PL_PROTOCOL 1

/* A received header. All zero is a valid empty one. It may be moved by assignment; there is one owner. */
typedef struct pl_envelope {
    Paceline__Envelope *m; /* NULL when nothing is unpacked */
    pl_arena arena;
} pl_envelope;

/* Unpacks header into e, over what it held before; the memory is used again, so a warm loop allocates nothing.
 * The structure is whole and well formed afterwards, its values are not yet checked: see check.h. Unpacking takes at
 * most 24 times the size of header and 64 KiB, whatever the header says. On failure e holds nothing and stays usable.
 * PL_ERR_FORMAT: not an Envelope, or more structure than bytes can honestly hold. PL_ERR_NO_MEMORY. */
PL_MUST_CHECK pl_status pl_envelope_unpack(pl_envelope *e, pl_bytes header, pl_error *err);
/* Back to all zero. */
void pl_envelope_fini(pl_envelope *e);

/* Bytes that m takes when packed. */
size_t pl_envelope_size(const Paceline__Envelope *m);
/* Packs m into exactly pl_envelope_size(m) bytes at out. */
void pl_envelope_pack(const Paceline__Envelope *m, uint8_t *out);

/* "Frame" for what m carries; "nothing" when it carries nothing that this build knows. */
const char *pl_envelope_kind(const Paceline__Envelope *m);
