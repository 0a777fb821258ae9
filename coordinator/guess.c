#include "coordinator/guess.h"

/* One token alone stands everywhere and tells nothing. */
enum { LONGEST = 3, SHORTEST = 2 };

int32_t pl_guess_repeated(void *user, const pl_request *r, int32_t *out, int32_t max)
{
    (void)user;
    const int32_t n = r->n_tokens, *t = r->tokens, first = n > PL_GUESS_WINDOW ? n - PL_GUESS_WINDOW : 0;
    int32_t at = -1, length = 0; /* what follows the best place so far, and how much of it is alike */
    for (int32_t end = n - 1; end - SHORTEST >= first && length < LONGEST; end--) {
        int32_t alike = 0;
        while (alike < LONGEST && end - alike > first && t[end - 1 - alike] == t[n - 1 - alike]) alike++;
        if (alike < SHORTEST || alike <= length) continue;
        at = end;
        length = alike;
    }
    if (at < 0) return 0;
    /* A text that repeats itself goes on repeating: behind the end come the guesses themselves. */
    for (int32_t i = 0; i < max; i++) out[i] = at + i < n ? t[at + i] : out[at + i - n];
    return max;
}
