/* Skipping over JSON, 64 bytes a step.
 *
 * A container is skipped by four bit masks a block (quote, backslash, opener, closer): the escapes are
 * resolved by one carrying addition, "inside a string" is the running parity of the quotes, and only a
 * block that may hold the last closer is looked at bit by bit. Nothing here reads outside [p, end).
 * This is a finder, not a validator: brackets are counted, not matched by kind.
 */
#ifndef RECLOCK_JSON_BLOCKS_H
#define RECLOCK_JSON_BLOCKS_H

#include <assert.h> /* checks of the debug build (-UNDEBUG) */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#define JB_X86 1
#include <immintrin.h>
#else
#define JB_X86 0
#endif

#define JB_INLINE static inline __attribute__((always_inline))

/* State of a skip that can go on in a later chunk. `depth` counts open containers. */
typedef struct {
    int64_t depth;
    uint32_t in_string;
    uint32_t escaped; /* the next byte is escaped */
} jb_state;

typedef struct {
    uint64_t quote, slash, open, close;
} jb_masks;

/* Bits of the bytes that a backslash escapes. A run of backslashes escapes every second byte after its
 * start; adding the runs that start on odd bits carries each to its end, which tells the parity. */
JB_INLINE uint64_t jb_escaped(uint64_t slash, uint64_t *carry) {
    const uint64_t odd = 0xAAAAAAAAAAAAAAAAULL;
    uint64_t live, after, odd_runs, sum, in = *carry;
    live = slash & ~in;
    if (live == 0) {
        *carry = 0;
        return in;
    }
    after = (live << 1) | in;
    odd_runs = live & odd & ~after;
    *carry = (uint64_t)__builtin_add_overflow(odd_runs, live, &sum);
    return (~odd ^ (sum << 1)) & after;
}

JB_INLINE uint64_t jb_parity_shift(uint64_t x) {
    x ^= x << 1;
    x ^= x << 2;
    x ^= x << 4;
    x ^= x << 8;
    x ^= x << 16;
    x ^= x << 32;
    return x;
}

/* One byte at a time: block tails, and the reference for the blocks. */
JB_INLINE const uint8_t *jb_skip_bytes(const uint8_t *p, const uint8_t *end, jb_state *s) {
    int64_t depth = s->depth;
    uint32_t in_string = s->in_string, escaped = s->escaped;
    for (; p < end; p++) {
        uint8_t c = *p;
        if (in_string) {
            if (escaped) escaped = 0;
            else if (c == '\\') escaped = 1;
            else if (c == '"') in_string = 0;
        } else {
            uint8_t folded = c | 0x20;
            /* a backslash outside a string is no JSON; treated as the blocks treat it */
            if (escaped) { escaped = 0; if (c == '"') continue; }
            else if (c == '\\') { escaped = 1; continue; }
            if (c == '"') in_string = 1;
            else if (folded == '{') depth++;
            else if (folded == '}' && --depth == 0) {
                s->depth = 0; s->in_string = 0; s->escaped = 0;
                return p + 1;
            }
        }
    }
    s->depth = depth; s->in_string = in_string; s->escaped = escaped;
    return NULL;
}

/* The block loop, made once per instruction set from its mask, parity and popcount. */
#define JB_DEFINE_SKIP(NAME, ATTRS, MASKS, PARITY)                                                       \
    ATTRS static const uint8_t *NAME(const uint8_t *p, const uint8_t *end, jb_state *s) {                \
        int64_t depth = s->depth;                                                                        \
        uint64_t inside = s->in_string ? ~0ULL : 0, carry = s->escaped;                                  \
        while (end - p >= 64) {                                                                          \
            jb_masks m;                                                                                  \
            uint64_t strings, open, close;                                                               \
            int64_t closers;                                                                             \
            assert(depth > 0);                                                                           \
            MASKS(p, &m);                                                                                \
            strings = PARITY(m.quote & ~jb_escaped(m.slash, &carry)) ^ inside;                           \
            inside = (uint64_t)((int64_t)strings >> 63);                                                 \
            open = m.open & ~strings;                                                                    \
            close = m.close & ~strings;                                                                  \
            closers = __builtin_popcountll(close);                                                       \
            if (__builtin_expect(closers >= depth, 0)) {                                                 \
                uint64_t both = open | close;                                                            \
                while (both) {                                                                           \
                    uint64_t bit = both & (0 - both);                                                    \
                    if (close & bit) {                                                                   \
                        if (--depth == 0) {                                                              \
                            s->depth = 0; s->in_string = 0; s->escaped = 0;                              \
                            return p + __builtin_ctzll(bit) + 1;                                         \
                        }                                                                                \
                    } else depth++;                                                                      \
                    both ^= bit;                                                                         \
                }                                                                                        \
            } else depth += __builtin_popcountll(open) - closers;                                        \
            p += 64;                                                                                     \
        }                                                                                                \
        s->depth = depth; s->in_string = inside != 0; s->escaped = (uint32_t)carry;                      \
        return jb_skip_bytes(p, end, s);                                                                 \
    }

/* --- eight bytes at a time, any machine --- */
JB_INLINE uint64_t jb_load8(const uint8_t *p) {
    uint64_t w;
    memcpy(&w, p, 8);
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    w = __builtin_bswap64(w);
#endif
    return w;
}

/* 0x80 in each byte of w that equals the byte repeated in `pattern`; exact, no borrow between bytes. */
JB_INLINE uint64_t jb_equal8(uint64_t w, uint64_t pattern) {
    const uint64_t low = 0x7F7F7F7F7F7F7F7FULL;
    uint64_t x = w ^ pattern;
    return ~(((x & low) + low) | x | low);
}

JB_INLINE uint64_t jb_gather8(uint64_t high_bits) { return ((high_bits >> 7) * 0x0102040810204080ULL) >> 56; }

#define JB_ALL(c) ((uint64_t)(c) * 0x0101010101010101ULL)

JB_INLINE void jb_masks_portable(const uint8_t *p, jb_masks *m) {
    int i;
    m->quote = m->slash = m->open = m->close = 0;
    for (i = 0; i < 64; i += 8) {
        uint64_t w = jb_load8(p + i), folded = w | JB_ALL(0x20);
        m->quote |= jb_gather8(jb_equal8(w, JB_ALL('"'))) << i;
        m->slash |= jb_gather8(jb_equal8(w, JB_ALL('\\'))) << i;
        m->open |= jb_gather8(jb_equal8(folded, JB_ALL('{'))) << i;
        m->close |= jb_gather8(jb_equal8(folded, JB_ALL('}'))) << i;
    }
}
JB_DEFINE_SKIP(jb_skip_portable, , jb_masks_portable, jb_parity_shift)

#if JB_X86
#define JB_SSE __attribute__((target("popcnt")))
#define JB_AVX __attribute__((target("avx2,pclmul,popcnt,bmi,lzcnt")))

#define JB_SSE_BITS(v) ((uint64_t)(uint32_t)_mm_movemask_epi8(v))
JB_INLINE JB_SSE void jb_masks_sse(const uint8_t *p, jb_masks *m) {
    const __m128i quote = _mm_set1_epi8('"'), slash = _mm_set1_epi8('\\'), fold = _mm_set1_epi8(0x20);
    const __m128i open = _mm_set1_epi8('{'), close = _mm_set1_epi8('}');
    int i;
    m->quote = m->slash = m->open = m->close = 0;
    for (i = 0; i < 64; i += 16) {
        __m128i v = _mm_loadu_si128((const __m128i *)(p + i)), f = _mm_or_si128(v, fold);
        m->quote |= JB_SSE_BITS(_mm_cmpeq_epi8(v, quote)) << i;
        m->slash |= JB_SSE_BITS(_mm_cmpeq_epi8(v, slash)) << i;
        m->open |= JB_SSE_BITS(_mm_cmpeq_epi8(f, open)) << i;
        m->close |= JB_SSE_BITS(_mm_cmpeq_epi8(f, close)) << i;
    }
}
JB_DEFINE_SKIP(jb_skip_sse, JB_SSE, jb_masks_sse, jb_parity_shift)

#define JB_AVX_BITS(a, b) ((uint64_t)(uint32_t)_mm256_movemask_epi8(a) | (uint64_t)(uint32_t)_mm256_movemask_epi8(b) << 32)
JB_INLINE JB_AVX void jb_masks_avx(const uint8_t *p, jb_masks *m) {
    const __m256i quote = _mm256_set1_epi8('"'), slash = _mm256_set1_epi8('\\'), fold = _mm256_set1_epi8(0x20);
    const __m256i open = _mm256_set1_epi8('{'), close = _mm256_set1_epi8('}');
    __m256i a = _mm256_loadu_si256((const __m256i *)p), b = _mm256_loadu_si256((const __m256i *)(p + 32));
    __m256i fa = _mm256_or_si256(a, fold), fb = _mm256_or_si256(b, fold);
    m->quote = JB_AVX_BITS(_mm256_cmpeq_epi8(a, quote), _mm256_cmpeq_epi8(b, quote));
    m->slash = JB_AVX_BITS(_mm256_cmpeq_epi8(a, slash), _mm256_cmpeq_epi8(b, slash));
    m->open = JB_AVX_BITS(_mm256_cmpeq_epi8(fa, open), _mm256_cmpeq_epi8(fb, open));
    m->close = JB_AVX_BITS(_mm256_cmpeq_epi8(fa, close), _mm256_cmpeq_epi8(fb, close));
}
JB_INLINE JB_AVX uint64_t jb_parity_clmul(uint64_t x) {
    return (uint64_t)_mm_cvtsi128_si64(
        _mm_clmulepi64_si128(_mm_set_epi64x(0, (long long)x), _mm_set1_epi8((char)0xFF), 0));
}
JB_DEFINE_SKIP(jb_skip_avx, JB_AVX, jb_masks_avx, jb_parity_clmul)
#endif

typedef const uint8_t *(*jb_skip_fn)(const uint8_t *, const uint8_t *, jb_state *);
static jb_skip_fn jb_skip = jb_skip_portable;

/* The best instruction set of this machine: 0 portable, 1 SSE2 + popcnt, 2 AVX2 + carry-less multiply. */
static int jb_best_level(void) {
#if JB_X86
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("popcnt") &&
        __builtin_cpu_supports("bmi"))
        return 2;
    if (__builtin_cpu_supports("popcnt")) return 1;
#endif
    return 0;
}

static int jb_set_level(int level) {
    if (level < 0 || level > jb_best_level()) return -1;
    jb_skip = jb_skip_portable;
#if JB_X86
    if (level == 1) jb_skip = jb_skip_sse;
    if (level == 2) jb_skip = jb_skip_avx;
#endif
    return level;
}

/* First quote or backslash at or after p; end if there is none. */
JB_INLINE const uint8_t *jb_quote_or_slash(const uint8_t *p, const uint8_t *end) {
#if JB_X86
    const __m128i quote = _mm_set1_epi8('"'), slash = _mm_set1_epi8('\\');
    while (end - p >= 16) {
        __m128i v = _mm_loadu_si128((const __m128i *)p);
        int bits = _mm_movemask_epi8(_mm_or_si128(_mm_cmpeq_epi8(v, quote), _mm_cmpeq_epi8(v, slash)));
        if (bits) return p + __builtin_ctz((unsigned)bits);
        p += 16;
    }
#else
    while (end - p >= 8) {
        uint64_t w = jb_load8(p), hit = jb_equal8(w, JB_ALL('"')) | jb_equal8(w, JB_ALL('\\'));
        if (hit) return p + (__builtin_ctzll(hit) >> 3);
        p += 8;
    }
#endif
    while (p < end && *p != '"' && *p != '\\') p++;
    return p;
}

/* p stands after an opening quote. Returns the closing quote, NULL when the input ends before it. */
JB_INLINE const uint8_t *jb_string_end(const uint8_t *p, const uint8_t *end, int *has_escape) {
    for (;;) {
        assert(p <= end);
        p = jb_quote_or_slash(p, end);
        if (p >= end) return NULL;
        if (*p == '"') return p;
        *has_escape = 1;
        if (end - p < 3) return NULL;
        p += 2;
    }
}

JB_INLINE const uint8_t *jb_space(const uint8_t *p, const uint8_t *end) {
    while (p < end && (*p == ' ' || *p == '\n' || *p == '\t' || *p == '\r')) p++;
    return p;
}

/* p stands on the first byte of a value. Returns the byte after it; NULL when it is cut short or empty. */
JB_INLINE const uint8_t *jb_value_end(const uint8_t *p, const uint8_t *end) {
    const uint8_t *q = p;
    int ignored = 0;
    if (p >= end) return NULL;
    if (*p == '"') {
        q = jb_string_end(p + 1, end, &ignored);
        return q ? q + 1 : NULL;
    }
    if (*p == '{' || *p == '[') {
        jb_state s = {1, 0, 0};
        return jb_skip(p + 1, end, &s);
    }
    while (q < end && *q != ',' && *q != '}' && *q != ']' && *q != ' ' && *q != '\n' && *q != '\t' && *q != '\r') {
        if (*q == '"' || *q == '{' || *q == '[' || *q == ':') return NULL;
        q++;
    }
    return q < end && q > p ? q : NULL;
}

/* The text a JSON string stands for, when it is plain ASCII and fits `room` (only names of keys are
 * compared this way); its length, or -1 when it cannot be any key that we look for. */
static ptrdiff_t jb_plain_key(const uint8_t *p, const uint8_t *end, char *out, ptrdiff_t room) {
    ptrdiff_t n = 0;
    while (p < end) {
        uint32_t c = *p++;
        if (c == '\\') {
            if (p >= end) return -1;
            c = *p++;
            switch (c) {
            case 'n': c = '\n'; break;
            case 't': c = '\t'; break;
            case 'r': c = '\r'; break;
            case 'b': c = '\b'; break;
            case 'f': c = '\f'; break;
            case '"': case '\\': case '/': break;
            case 'u': {
                int i;
                if (end - p < 4) return -1;
                for (c = 0, i = 0; i < 4; i++, p++) {
                    uint32_t d = *p, lower = d | 0x20;
                    if (d >= '0' && d <= '9') d -= '0';
                    else if (lower >= 'a' && lower <= 'f') d = lower - 'a' + 10;
                    else return -1;
                    c = c << 4 | d;
                }
                break;
            }
            default: return -1;
            }
        }
        if (c >= 0x80 || n >= room) return -1;
        out[n++] = (char)c;
    }
    return n;
}

/* Ask for a buffer's lines at once: a walk from key to key, and then the copy, would otherwise wait for them
 * in turn when the buffer is not in the cache. 8 kB hold a pod; measured +27% on cold events, -2% on hot. */
JB_INLINE void jb_prefetch(const uint8_t *p, ptrdiff_t length) {
    ptrdiff_t i;
    __builtin_prefetch(p + length - 1);
    for (i = 0; i < length && i < 8192; i += 64) __builtin_prefetch(p + i);
}

/* --- members of an object, one at a time --- */
typedef struct {
    const uint8_t *p, *end;
    const uint8_t *raw;  /* opening quote of the key as it stands */
    const char *key;     /* the key's text (not terminated); in `plain` when it was written with escapes */
    ptrdiff_t key_len;   /* -1: no key that we look for */
    const uint8_t *val;  /* first byte of the value */
    int count;
    char plain[48];
} jb_walk;

/* p stands on '{'. Returns 0, or -1 when it does not. */
JB_INLINE int jb_walk_start(jb_walk *w, const uint8_t *p, const uint8_t *end) {
    w->end = end;
    w->count = 0;
    if (p >= end || *p != '{') return -1;
    w->p = p + 1;
    return 0;
}

/* 1: a member, w->val is its value and the caller must move w->p behind it; 0: the object ended, w->p
 * stands on its '}'; -1: no JSON, or cut short. */
JB_INLINE int jb_walk_next(jb_walk *w) {
    const uint8_t *p = jb_space(w->p, w->end), *q;
    int has_escape = 0;
    assert(w->p <= w->end);
    if (p >= w->end) return -1;
    if (*p == '}') {
        w->p = p;
        return 0;
    }
    if (w->count++) {
        if (*p != ',') return -1;
        p = jb_space(p + 1, w->end);
        if (p >= w->end) return -1;
    }
    if (*p != '"') return -1;
    w->raw = p;
    q = jb_string_end(p + 1, w->end, &has_escape);
    if (q == NULL) return -1;
    if (__builtin_expect(has_escape, 0)) {
        w->key = w->plain;
        w->key_len = jb_plain_key(p + 1, q, w->plain, (ptrdiff_t)sizeof w->plain);
    } else {
        w->key = (const char *)(p + 1);
        w->key_len = q - p - 1;
    }
    p = jb_space(q + 1, w->end);
    if (p >= w->end || *p != ':') return -1;
    p = jb_space(p + 1, w->end);
    if (p >= w->end) return -1;
    w->val = p;
    return 1;
}

/* Moves behind the value. 0, or -1. */
JB_INLINE int jb_walk_skip(jb_walk *w) {
    const uint8_t *q = jb_value_end(w->val, w->end);
    if (q == NULL) return -1;
    w->p = q;
    return 0;
}

JB_INLINE int jb_key_is(const jb_walk *w, const char *name, ptrdiff_t len) {
    return w->key_len == len && memcmp(w->key, name, (size_t)len) == 0;
}

/* Elements of an array: p stands behind '[' at first, then behind an element. 1: *p is the next element's
 * first byte; 0: the array ended, *p stands on ']'; -1: no JSON. */
JB_INLINE int jb_next_element(const uint8_t **p, const uint8_t *end, int *count) {
    const uint8_t *q = jb_space(*p, end);
    if (q >= end) return -1;
    if (*q == ']') {
        *p = q;
        return 0;
    }
    if ((*count)++) {
        if (*q != ',') return -1;
        q = jb_space(q + 1, end);
        if (q >= end) return -1;
    }
    *p = q;
    return 1;
}

#endif
