#include "proto/codec.h"

/* The honest worst case is a Result of tokens with default values: 2 bytes on the wire, 120 in memory. Such a message
 * is senseless, so the bound is set for real ones: a Token with its logprob is 13 bytes and takes about 130. */
#define GROWTH_MAX  24
#define GROWTH_BASE (64u << 10)

typedef struct budget {
    pl_arena *arena;
    size_t left;
    bool refused, no_memory; /* why the last allocation failed; protobuf-c does not tell */
} budget;

static void *budget_alloc(void *user, size_t size)
{
    budget *b = user;
    if (size > b->left) {
        b->refused = true;
        return NULL;
    }
    b->left -= size;
    void *p = pl_arena_alloc(b->arena, size);
    if (!p) b->no_memory = true;
    return p;
}

/* The arena ends as a whole. */
static void budget_free(void *user, void *p)
{
    (void)user;
    (void)p;
}

pl_status pl_envelope_unpack(pl_envelope *e, pl_bytes header, pl_error *err)
{
    e->m = NULL;
    if (e->arena.chunk_size == 0)
        pl_arena_init(&e->arena, 4096);
    else
        pl_arena_reset(&e->arena);
    budget b = {.arena = &e->arena, .left = GROWTH_BASE};
    size_t grown;
    if (!__builtin_mul_overflow(header.size, (size_t)GROWTH_MAX, &grown) && grown <= SIZE_MAX - b.left) b.left += grown;
    ProtobufCAllocator allocator = {budget_alloc, budget_free, &b};
    /* An empty header has no bytes to point to, and protobuf-c wants a pointer. */
    const uint8_t *data = header.size ? header.data : (const uint8_t *)"";
    e->m = paceline__envelope__unpack(&allocator, header.size, data);
    if (e->m) return PL_OK;
    if (b.refused)
        return pl_fail(err, PL_ERR_FORMAT, "header of %zu bytes: unpacks to more than %d times its size", header.size,
                       GROWTH_MAX);
    if (b.no_memory) return pl_fail(err, PL_ERR_NO_MEMORY, "header of %zu bytes: no memory", header.size);
    return pl_fail(err, PL_ERR_FORMAT, "header of %zu bytes: not a message of this protocol", header.size);
}

void pl_envelope_fini(pl_envelope *e)
{
    pl_arena_fini(&e->arena);
    *e = (pl_envelope){0};
}

size_t pl_envelope_size(const Paceline__Envelope *m)
{
    return paceline__envelope__get_packed_size(m);
}

void pl_envelope_pack(const Paceline__Envelope *m, uint8_t *out)
{
    paceline__envelope__pack(m, out);
}

const char *pl_envelope_kind(const Paceline__Envelope *m)
{
    switch (m->body_case) {
    case PACELINE__ENVELOPE__BODY_HELLO: return "Hello";
    case PACELINE__ENVELOPE__BODY_WELCOME: return "Welcome";
    case PACELINE__ENVELOPE__BODY_HEARTBEAT: return "Heartbeat";
    case PACELINE__ENVELOPE__BODY_LOAD: return "Load";
    case PACELINE__ENVELOPE__BODY_PROGRESS: return "Progress";
    case PACELINE__ENVELOPE__BODY_READY: return "Ready";
    case PACELINE__ENVELOPE__BODY_UNLOAD: return "Unload";
    case PACELINE__ENVELOPE__BODY_FRAME: return "Frame";
    case PACELINE__ENVELOPE__BODY_RESULT: return "Result";
    case PACELINE__ENVELOPE__BODY_CREDIT: return "Credit";
    case PACELINE__ENVELOPE__BODY_BLOB_GET: return "BlobGet";
    case PACELINE__ENVELOPE__BODY_BLOB: return "Blob";
    case PACELINE__ENVELOPE__BODY_LINK_STATE: return "LinkState";
    case PACELINE__ENVELOPE__BODY_LEAVE: return "Leave";
    case PACELINE__ENVELOPE__BODY_FAILURE: return "Failure";
    default: return "nothing";
    }
}
