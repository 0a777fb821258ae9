#include "engine/cpu/mm.h"

#include "engine/cpu/act.h"
#include "engine/cpu/pack.h"
#include "engine/graph/scratch.h"

enum {
    ROWS = PL_PACK_ROWS,
    PAIRS = PL_SCRATCH_PAIRS,
    STRIP_BYTES = 128 << 10,   /* packed weights that are kept close while a panel's tiles pass over them */
    FLOAT_GROUPS = 4,          /* float kernels run four groups at once to fill the pipeline */
    CHUNKS_PER_THREAD = 8,     /* so that a core that is twice as slow ends one eighth late at most */
    CHUNK_BYTES_MIN = 32 << 10 /* weights times tokens of a chunk, so that taking one costs little beside it */
};
_Static_assert((int)ROWS == PL_SCRATCH_ROWS && (int)PL_ACT_TILE == PL_SCRATCH_TILE &&
                   (int)PL_CPU_EXPANDED == PL_SCRATCH_EXPANDED,
               "scratch has the sizes of groups, tiles and expanded blocks");

/* A kernel, for weights that are packed or expanded: the types of kernels.h. */
typedef void (*kernel)(float *dst, size_t dst_stride, const void *w, int64_t n_groups, const void *act, int64_t k,
                       int tile);

typedef void (*more_kernel)(float *acc, const uint16_t *at, const void *w, const void *act, int tile);

/* The head of scratch: whose activations stand behind it. */
typedef struct head {
    const pl_tensor *x; /* NULL: nobody's */
    pl_act act;
    pl_precision precision;
} head;
_Static_assert(sizeof(head) <= PL_SCRATCH_HEAD, "the head fits");

/* The second terms of a panel that are not empty, gathered by blocks: tiles of one block each, for
 * pl_cpu_kernels.mm_more. One per thread and call; products that go together share it. */
typedef struct more {
    int64_t panel;   /* its first token; -1: nothing is gathered */
    bool most;       /* more than there is room for: all are taken, from where they are */
    uint32_t *first; /* [blocks + 1] in tokens and tiles */
    uint16_t *tokens;
    char *tiles;
    float *acc; /* [panel][ROWS] */
} more;

/* What one product needs to know, derived from the tensors alike by every thread. */
typedef struct job {
    const pl_tensor *w, *x, *dst;
    pl_act act;
    pl_precision precision;
    pl_mul_mat_scratch sizes;
    int64_t k, m, n; /* n counts the terms of each row of x as tokens of their own where they are pairs */
    size_t row_size, token_size;
    int64_t n_groups, n_packed; /* groups, the ragged one included; groups that are packed already */
    int64_t panel;              /* tokens */
    int64_t chunk, n_chunks, strip_groups;
    char *acts;
    char *group;    /* this thread's packed copy of one group */
    char *expanded; /* this thread's group of expanded weights */
    more *more;     /* this thread's second terms where large */
    float *tile;    /* this thread's results: of a ragged group [PL_ACT_TILE][ROWS], of pairs PAIRS times as wide */
    const pl_cpu_kernels *kernels;
} job;

static int64_t min64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}
static int64_t max64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static bool is_matrix(const pl_tensor *t)
{
    return t->ne[2] == 1 && t->ne[3] == 1;
}

bool pl_cpu_mul_mat_supported(const pl_tensor *dst)
{
    const pl_tensor *w = dst->src[0], *x = dst->src[1];
    const pl_type_info *type = pl_type_get(w->type);
    return type != NULL && type->act != PL_ACT_NONE && is_matrix(w) && is_matrix(x) && x->type == PL_TYPE_F32 &&
           dst->type == PL_TYPE_F32 && x->nb[0] == sizeof(float) && dst->nb[0] == sizeof(float) &&
           w->ne[0] % type->block == 0;
}

static pl_mul_mat_scratch sizes_of(const pl_tensor *dst, int n_threads)
{
    const pl_tensor *w = dst->src[0];
    return pl_scratch_mul_mat(w->type, w->ne[0], dst->src[1]->ne[1], (pl_precision)dst->params.i[0], n_threads);
}

size_t pl_cpu_mul_mat_scratch(const pl_tensor *dst, int n_threads)
{
    return sizes_of(dst, n_threads).total;
}

void pl_cpu_mul_mat_begin(void *scratch)
{
    *(head *)scratch = (head){0};
}

/* As product, of tokens that are the two terms of tile / 2 rows. */
static void product_of_pairs(const job *j, kernel mm, const char *w, int64_t first, int64_t end, const void *act,
                             int tile, float *dst, size_t stride)
{
    const size_t tile_stride = PAIRS * ROWS;
    for (int64_t g = first; g < end; g += PAIRS, w += PAIRS * ROWS * j->row_size, dst += tile_stride) {
        int64_t n_groups = min64(PAIRS, end - g), columns = min64(n_groups * ROWS, j->m - g * ROWS);
        mm(j->tile, tile_stride, w, n_groups, act, j->k, tile);
        for (int t = 0; t < tile; t += 2) {
            const float *y = j->tile + (size_t)t * tile_stride;
            j->kernels->add(dst + (size_t)(t / 2) * stride, y, y + tile_stride, columns);
        }
    }
}

/* Groups first to end - 1 times one tile of tokens, all of them packed at w, or a single one as mm takes it. */
static void product(const job *j, kernel mm, const void *w, int64_t first, int64_t end, int64_t token)
{
    int tile = (int)min64(j->n - token, PL_ACT_TILE);
    size_t stride = j->dst->nb[1] / sizeof(float);
    int64_t row = j->sizes.paired ? token / 2 : token;
    float *dst = (float *)((char *)j->dst->data + (size_t)row * j->dst->nb[1]) + first * ROWS;
    const void *act = j->acts + (size_t)token * j->token_size;
    if (j->sizes.paired) {
        product_of_pairs(j, mm, w, first, end, act, tile, dst, stride);
        return;
    }
    if (end * ROWS <= j->m) {
        mm(dst, stride, w, end - first, act, j->k, tile);
        return;
    }
    /* The ragged group: its lanes beyond the last row must not reach dst. */
    mm(j->tile, ROWS, w, 1, act, j->k, tile);
    for (int t = 0; t < tile; t++)
        memcpy(dst + (size_t)t * stride, j->tile + t * ROWS, (size_t)(j->m - first * ROWS) * sizeof(float));
}

/* Whether second terms stand behind the first ones, in tiles of their own. */
static bool has_second(const job *j)
{
    return j->sizes.n_terms == 2 && !j->sizes.paired;
}

/* Adds the second terms of one tile of tokens; as product. */
static void add_second(const job *j, kernel mm, const char *w, int64_t first, int64_t end, int64_t token)
{
    int tile = (int)min64(j->n - token, PL_ACT_TILE);
    const size_t tile_stride = PAIRS * ROWS;
    const void *act = j->acts + (size_t)(j->n + token) * j->token_size;
    for (int64_t g = first; g < end; g += PAIRS, w += PAIRS * ROWS * j->row_size) {
        int64_t n_groups = min64(PAIRS, end - g), columns = min64(n_groups * ROWS, j->m - g * ROWS);
        mm(j->tile, tile_stride, w, n_groups, act, j->k, tile);
        for (int t = 0; t < tile; t++) {
            float *dst = (float *)((char *)j->dst->data + (size_t)(token + t) * j->dst->nb[1]) + g * ROWS;
            j->kernels->add(dst, dst, j->tile + (size_t)t * tile_stride, columns);
        }
    }
}

/* The parts of a thread's room for them, as pl_scratch_mul_mat counts it. */
static more room_of(const job *j, char *at)
{
    if (j->sizes.more == 0) return (more){.panel = -1};
    size_t blocks = (size_t)(j->k / pl_act_columns(j->act));
    more o = {.panel = -1, .acc = (float *)at};
    o.first = (uint32_t *)(at + (size_t)j->sizes.panel * ROWS * sizeof(float));
    o.tiles = (char *)(o.first + (blocks + 1));
    o.tokens = (uint16_t *)(o.tiles + j->sizes.most_more * pl_act_bytes(j->act));
    return o;
}

/* Copies slot `from` of a tile of one block to slot `to` of another. */
static void copy_slot(pl_act act, const char *src, int src_tile, int from, char *dst, int dst_tile, int to)
{
    static const size_t fields[2][4] = {{32, 4, 4, 4}, {256, 4, 64, 16}}; /* act.h */
    for (int i = 0; i < 4; i++) {
        size_t size = fields[act == PL_ACT_Q8K][i];
        memcpy(dst + (size_t)to * size, src + (size_t)from * size, size);
        src += (size_t)src_tile * size;
        dst += (size_t)dst_tile * size;
    }
}

/* Gathers what is not empty of the panel's second terms. */
static void gather(const job *j, int64_t token_first, int64_t token_end)
{
    more *o = j->more;
    const int columns = pl_act_columns(j->act);
    const size_t bytes = pl_act_bytes(j->act);
    const char *behind = j->acts + (size_t)j->n * j->token_size;
    size_t at = 0;
    o->panel = token_first;
    o->most = true;
    for (int64_t b = 0; b < j->k / columns; b++) {
        o->first[b] = (uint32_t)at;
        for (int64_t token = token_first; token < token_end; token += PL_ACT_TILE) {
            int tile = (int)min64(j->n - token, PL_ACT_TILE);
            const char *block = behind + (size_t)token * j->token_size + (size_t)b * (size_t)tile * bytes;
            for (int t = 0; t < tile; t++) {
                uint32_t d;
                memcpy(&d, block + columns * tile + 4 * t, sizeof d);
                if (d == 0) continue;
                if (at == j->sizes.most_more) return;
                o->tokens[at++] = (uint16_t)(token + t - token_first);
            }
        }
        for (size_t i = o->first[b]; i < at; i += PL_ACT_TILE) {
            int n = (int)min64((int64_t)(at - i), PL_ACT_TILE);
            for (int t = 0; t < n; t++) {
                int64_t token = token_first + o->tokens[i + (size_t)t], from = token / PL_ACT_TILE * PL_ACT_TILE;
                int tile = (int)min64(j->n - from, PL_ACT_TILE);
                const char *block = behind + (size_t)from * j->token_size + (size_t)b * (size_t)tile * bytes;
                copy_slot(j->act, block, tile, (int)(token - from), o->tiles + i * bytes, n, t);
            }
        }
    }
    o->first[j->k / columns] = (uint32_t)at;
    o->most = false;
}

/* Adds what was gathered of the panel, times one whole group of blocks of block_size bytes. */
static void add_gathered(const job *j, more_kernel mm_more, const char *w, size_t block_size, int64_t g,
                         int64_t token_first, int64_t token_end)
{
    const more *o = j->more;
    const size_t bytes = pl_act_bytes(j->act), n = (size_t)(token_end - token_first);
    const int64_t blocks = j->k / pl_act_columns(j->act);
    memset(o->acc, 0, n * ROWS * sizeof(float));
    for (int64_t b = 0; b < blocks; b++, w += block_size)
        for (uint32_t i = o->first[b]; i < o->first[b + 1]; i += PL_ACT_TILE)
            mm_more(o->acc, o->tokens + i, w, o->tiles + i * bytes, (int)min64(o->first[b + 1] - i, PL_ACT_TILE));
    for (size_t t = 0; t < n; t++) {
        float *dst = (float *)((char *)j->dst->data + ((size_t)token_first + t) * j->dst->nb[1]) + g * ROWS;
        for (int r = 0; r < ROWS; r++) dst[r] += o->acc[t * ROWS + (size_t)r];
    }
}

/* Groups first to end - 1, which are packed at w, times a panel of tokens. expanded: they are one, and it stands there
 * expanded as well. */
static void packed_groups(const job *j, const char *w, const char *expanded, int64_t first, int64_t end,
                          int64_t token_first, int64_t token_end)
{
    const pl_cpu_kernels *k = j->kernels;
    kernel mm = expanded ? k->mm_expanded[j->w->type] : k->mm[j->w->type];
    const char *from = expanded ? expanded : w;
    for (int64_t t = token_first; t < token_end; t += PL_ACT_TILE) product(j, mm, from, first, end, t);
    if (!has_second(j)) return;
    const bool of_expanded = expanded && k->mm_more_expanded[j->w->type];
    if (j->sizes.more > 0 && (of_expanded || k->mm_more[j->w->type]) && end * ROWS <= j->m) {
        if (j->more->panel != token_first) gather(j, token_first, token_end);
        if (!j->more->most) {
            size_t size = ROWS * j->row_size / (size_t)(j->k / pl_act_columns(j->act));
            if (of_expanded)
                add_gathered(j, k->mm_more_expanded[j->w->type], expanded, PL_CPU_EXPANDED, first, token_first,
                             token_end);
            for (int64_t g = first; g < end && !of_expanded; g++, w += ROWS * j->row_size)
                add_gathered(j, k->mm_more[j->w->type], w, size, g, token_first, token_end);
            return;
        }
    }
    for (int64_t t = token_first; t < token_end; t += PL_ACT_TILE) add_second(j, mm, from, first, end, t);
}

/* Groups first to end - 1 times a panel of tokens. */
static void strip(const job *j, int64_t first, int64_t end, int64_t token_first, int64_t token_end)
{
    const char *rows = j->w->data;
    const pl_cpu_kernels *k = j->kernels;
    const pl_type type = j->w->type;
    const bool expand =
        j->sizes.expanded > 0 && k->expand[type] != NULL && (token_end - token_first > PL_ACT_TILE || has_second(j));
    int64_t packed_end = max64(first, min64(end, j->n_packed));
    if (first < packed_end && !expand)
        packed_groups(j, rows + (size_t)(first * ROWS) * j->row_size, NULL, first, packed_end, token_first, token_end);
    for (int64_t g = first; g < packed_end && expand; g++) {
        const char *w = rows + (size_t)(g * ROWS) * j->row_size;
        k->expand[type](j->expanded, w, j->k);
        packed_groups(j, w, j->expanded, g, g + 1, token_first, token_end);
    }
    for (int64_t g = packed_end; g < end; g++) {
        int n_rows = (int)min64(ROWS, j->m - g * ROWS);
        pl_pack_group(type, j->k, rows + (size_t)(g * ROWS) * j->w->nb[1], j->w->nb[1], n_rows, j->group);
        if (expand) k->expand[type](j->expanded, j->group, j->k);
        packed_groups(j, j->group, expand ? j->expanded : NULL, g, g + 1, token_first, token_end);
    }
}

/* Groups per chunk. Chunks are equal, so that their number divides among equal threads without a rest. */
static int64_t chunk_groups(const job *j, int n_threads)
{
    int64_t work = j->n_groups * (int64_t)(ROWS * j->row_size) * min64(j->n, PL_ACT_TILE);
    int64_t per_thread = max64(1, min64(CHUNKS_PER_THREAD, work / (CHUNK_BYTES_MIN * n_threads)));
    int64_t chunks = n_threads * per_thread, chunk = (j->n_groups + chunks - 1) / chunks;
    if (j->act == PL_ACT_F32) chunk = (chunk + FLOAT_GROUPS - 1) / FLOAT_GROUPS * FLOAT_GROUPS;
    return chunk;
}

/* Makes the activations, or finds them made, and waits until all of them are. */
static void activations(job *j, pl_team *team, int i_thread, int n_threads, head *h)
{
    const pl_tensor *x = j->x;
    if (j->sizes.own) {
        pl_act_make(j->kernels, j->act, j->precision, x->data, x->nb[1], j->k, x->ne[1], j->acts, 0, 1);
        /* The threads' parts may lie where shared activations were. Nobody reads the head before the next barrier. */
        if (i_thread == 0) h->x = NULL;
        return;
    }
    if (h->x == x && h->act == j->act && h->precision == j->precision) return;
    pl_act_make(j->kernels, j->act, j->precision, x->data, x->nb[1], j->k, x->ne[1], j->acts, i_thread, n_threads);
    pl_team_barrier(team);
    if (i_thread == 0) *h = (head){x, j->act, j->precision};
}

/* What every thread knows of a product, without its own place in scratch. */
static job job_of(const pl_tensor *dst, int n_threads, const pl_cpu_kernels *k)
{
    const pl_tensor *w = dst->src[0], *x = dst->src[1];
    job j = {.w = w,
             .x = x,
             .dst = dst,
             .act = pl_type_get(w->type)->act,
             .k = w->ne[0],
             .m = w->ne[1],
             .sizes = sizes_of(dst, n_threads),
             .kernels = k};
    PL_ASSERT(k->mm[w->type] != NULL);
    j.precision = j.sizes.n_terms == 2 ? (pl_precision)dst->params.i[0] : PL_ONE_TERM;
    j.n = x->ne[1] * (j.sizes.paired ? 2 : 1);
    j.row_size = pl_type_row_size(w->type, j.k);
    j.token_size = pl_act_token_size(j.act, j.k);
    j.n_groups = (j.m + ROWS - 1) / ROWS;
    j.n_packed = w->layout == PL_LAYOUT_R16 ? j.m / ROWS : 0;
    j.panel = j.sizes.panel;
    j.chunk = chunk_groups(&j, n_threads);
    j.n_chunks = (j.n_groups + j.chunk - 1) / j.chunk;
    j.strip_groups = j.chunk;
    if (j.panel > PL_ACT_TILE || has_second(&j))
        j.strip_groups = max64(FLOAT_GROUPS, STRIP_BYTES / (int64_t)(ROWS * j.row_size));
    return j;
}

/* Chunk i of the products of a lane, counted over its panels, and what follows them. */
static void run_chunk(const job *jobs, int n_jobs, int lane, const pl_cpu_results *results, int64_t i)
{
    const job *leader = &jobs[lane];
    int64_t token = i / leader->n_chunks * leader->panel, token_end = min64(leader->n, token + leader->panel);
    int64_t first = i % leader->n_chunks * leader->chunk, end = min64(leader->n_groups, first + leader->chunk);
    for (int at = lane; at < n_jobs; at++) {
        const job *j = &jobs[at];
        if (results ? results->lane[at] != lane : at != lane) continue;
        for (int64_t g = first; g < end; g += j->strip_groups)
            strip(j, g, min64(end, g + j->strip_groups), token, token_end);
    }
    int n_terms = leader->sizes.paired ? 2 : 1;
    if (results)
        results->done(results->user, lane, token / n_terms, token_end / n_terms, first * ROWS,
                      min64(end * ROWS, leader->m));
}

void pl_cpu_mul_mat(pl_team *team, int i_thread, int n_threads, const pl_tensor *const *dst, int n_dst,
                    const pl_cpu_results *results, void *scratch, const pl_cpu_kernels *k)
{
    PL_ASSERT(n_dst >= 1 && n_dst <= PL_CPU_MUL_MAT_TOGETHER);
    job jobs[PL_CPU_MUL_MAT_TOGETHER];
    int64_t ends[PL_CPU_MUL_MAT_TOGETHER], total = 0;
    size_t each = 0; /* one place per thread, which serves all of the products */
    for (int i = 0; i < n_dst; i++) {
        jobs[i] = job_of(dst[i], n_threads, k);
        bool leads = !results || results->lane[i] == i; /* the others' chunks are their leader's */
        ends[i] = total += leads ? (jobs[i].n + jobs[i].panel - 1) / jobs[i].panel * jobs[i].n_chunks : 0;
        if (jobs[i].sizes.thread > each) each = jobs[i].sizes.thread;
    }
    const pl_mul_mat_scratch *of = &jobs[0].sizes; /* own and act are the same in all of them */
    char *acts = (char *)scratch + PL_SCRATCH_HEAD, *part = acts + (of->own ? 0 : of->act) + (size_t)i_thread * each;
    more room = room_of(&jobs[0], part + (of->own ? of->act : 0));
    for (int i = 0; i < n_dst; i++) {
        jobs[i].acts = of->own ? part : acts;
        jobs[i].more = &room;
        jobs[i].group = part + (of->own ? of->act : 0) + of->more;
        jobs[i].expanded = jobs[i].group + jobs[i].sizes.group;
        jobs[i].tile = (float *)(jobs[i].expanded + jobs[i].sizes.expanded);
    }
    activations(&jobs[0], team, i_thread, n_threads, scratch);

    /* One thread alone need not ask the team, whose counter nobody may have reset. */
    int at = 0;
    for (int64_t i = n_threads > 1 ? pl_team_next(team) : 0; i<total; i = n_threads> 1 ? pl_team_next(team) : i + 1) {
        while (i >= ends[at]) at++;
        run_chunk(jobs, n_dst, at, results, at > 0 ? i - ends[at - 1] : i);
    }
}
