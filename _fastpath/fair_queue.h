/* What the fair queue needs from C: one comparison without branches, hashes, a clock, prefetching, slots of objects. */
#ifndef RECLOCK_FAIR_QUEUE_H
#define RECLOCK_FAIR_QUEUE_H

#include <Python.h>
#include <assert.h> /* checks of the debug build (-UNDEBUG) */
#include <stdint.h>
#include <string.h>
#include <structmember.h>
#include <time.h>
#if defined(__x86_64__) && defined(__GNUC__)
#include <x86intrin.h>
#endif

#define FQ_NONE ((uint32_t)0xFFFFFFFFu) /* no index */

/* Rounds of namespaces wrap; in the debug build soon, so that its tests see it. */
#ifdef NDEBUG
#define FQ_FIRST_ROUND 1u
#else
#define FQ_FIRST_ROUND 0xFFFFFFF8u
#endif

/* One cluster in the heap. Non-negative doubles order as their bits, so (tag, turn) compares as one
 * 128-bit number. `rank` is 0 for all unless priorities go before clusters. */
typedef struct {
    uint64_t tag;
    uint64_t turn;
    uint32_t cluster;
    uint32_t rank;
} fq_ent;

static inline int fq_less(const fq_ent *a, const fq_ent *b) {
    if (__builtin_expect(a->rank != b->rank, 0)) return a->rank < b->rank;
#ifdef __SIZEOF_INT128__
    return ((unsigned __int128)a->tag << 64 | a->turn) < ((unsigned __int128)b->tag << 64 | b->turn);
#else
    return a->tag != b->tag ? a->tag < b->tag : a->turn < b->turn;
#endif
}

static inline uint64_t fq_bits(double tag) {
    uint64_t bits;
    memcpy(&bits, &tag, sizeof bits);
    return bits;
}

static inline uint32_t fq_mix(uint64_t a, uint64_t b) {
    uint64_t h = (a ^ (b + 1) * 0x9E3779B97F4A7C15ULL) * 0xD6E8FEB86659FD93ULL;
    h ^= h >> 32;
    h *= 0xD6E8FEB86659FD93ULL;
    return (uint32_t)(h >> 32);
}

/* The hash of a str, which keeps it once it was hashed (and hashing a str does not fail). */
static inline uint64_t fq_str_hash(PyObject *key) {
    Py_hash_t hash = ((PyASCIIObject *)key)->hash;
    return (uint64_t)(hash != -1 ? hash : PyObject_Hash(key));
}

/* Hash of a key's namespace: what stands before its first '/', "" without one; never 0. Two namespaces of one
 * hash share their turn, nothing worse, so 31 bits and no comparison are enough. */
static inline uint32_t fq_namespace(PyObject *key) {
    const uint8_t *p = (const uint8_t *)PyUnicode_DATA(key);
    Py_ssize_t n = PyUnicode_GET_LENGTH(key), end;
    uint64_t h = 0, w;
    int kind = PyUnicode_KIND(key);
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    if (kind == PyUnicode_1BYTE_KIND) {
        /* Eight bytes at a time up to the slash. Words are aligned, so that none reaches into another page; a
         * slash behind the string's end is none of its own. */
        const uint64_t *words = (const uint64_t *)p;
        for (end = 0; end < n; end += 8) {
            uint64_t found;
            w = *words++;
            found = w ^ 0x2F2F2F2F2F2F2F2FULL;
            found = (found - 0x0101010101010101ULL) & ~found & 0x8080808080808080ULL;
            if (found) {
                int bit = __builtin_ctzll(found) - 7; /* of the slash's first bit: its byte times 8 */
                if (end + bit / 8 >= n) break;
                return fq_mix(h, w & (((uint64_t)1 << bit) - 1)) | 1;
            }
            h = (h ^ w) * 0x9E3779B97F4A7C15ULL;
            h ^= h >> 29;
        }
        return fq_mix(0, 0) | 1;
    }
#endif
    for (end = 0; end < n && PyUnicode_READ(kind, p, end) != '/'; end++) {}
    if (end == n) end = 0;
    for (end *= kind; end >= 8; p += 8, end -= 8) {
        memcpy(&w, p, 8);
        h = (h ^ w) * 0x9E3779B97F4A7C15ULL;
        h ^= h >> 29;
    }
    w = 0;
    memcpy(&w, p, (size_t)end);
    return fq_mix(h, w) | 1;
}

static inline int fq_same_key(PyObject *a, PyObject *b) {
    if (a == b) return 1;
    if (PyUnicode_GET_LENGTH(a) != PyUnicode_GET_LENGTH(b) || PyUnicode_KIND(a) != PyUnicode_KIND(b)) return 0;
    return memcmp(PyUnicode_DATA(a), PyUnicode_DATA(b), (size_t)(PyUnicode_GET_LENGTH(a) * PyUnicode_KIND(a))) == 0;
}

static inline void fq_prefetch(const void *p) { __builtin_prefetch(p); }

/* time.monotonic()'s own clock where that is known, without the call: 1, or 0 when it is not. */
static inline int fq_has_monotonic(void) {
#ifdef __linux__
    return 1;
#else
    return 0;
#endif
}

static inline double fq_exact(void) {
#ifdef __linux__
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
#else
    return 0.0;
#endif
}

/* The same, at most FQ_STALE ticks of the processor's counter (5 to 10 microseconds) old: reading the counter takes
 * a third of the time. Called with the interpreter's lock held. */
#define FQ_STALE 20000u
static inline double fq_monotonic(void) {
#if defined(__x86_64__) && defined(__GNUC__)
    static double last;
    static uint64_t at;
    uint64_t ticks = __rdtsc();
    if (__builtin_expect(ticks - at >= FQ_STALE, 0)) {
        double now = fq_exact();
        at = ticks;
        last = now > last ? now : last;
    }
    return last;
#else
    return fq_exact();
#endif
}

/* Callers mostly name a cluster by the same str again: the last answer for its address is tried first. */
#define FQ_GUESSES 256
static inline uint32_t fq_guess(PyObject *name) {
    uintptr_t at = (uintptr_t)name;
    return (uint32_t)((at >> 4 ^ at >> 12) % FQ_GUESSES);
}

/* Durations by size, two buckets an octave: 0 is below 2^-16 s, then [2^e, 1.5 * 2^e) and [1.5 * 2^e, 2^(e+1)),
 * the last one is 2^11 s and more. */
#define FQ_BUCKETS 56
static inline uint32_t fq_bucket(double seconds) {
    int64_t at = (int64_t)(fq_bits(seconds) >> 51) - 2 * (1023 - 16) + 1;
    return at < 0 ? 0 : at >= FQ_BUCKETS ? FQ_BUCKETS - 1 : (uint32_t)at;
}

#define FQ_OFFSET_OF_CLUSTER(item) ((char *)&(item)->cluster_ - (char *)(item))
#define FQ_OFFSET_OF_KEY(item) ((char *)&(item)->key_ - (char *)(item))

/* An attribute that is read straight from the object, which the interpreter does without a call. */
static inline int fq_member(PyTypeObject *type, const char *name, Py_ssize_t offset) {
    PyMemberDef *def = PyMem_Calloc(1, sizeof *def); /* the descriptor points to it for ever */
    PyObject *descriptor;
    int failed;
    if (def == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    def->name = name;
    def->type = T_OBJECT_EX;
    def->offset = offset;
    def->flags = READONLY;
    descriptor = PyDescr_NewMember(type, def);
    if (descriptor == NULL) return -1;
    failed = PyDict_SetItemString(type->tp_dict, name, descriptor);
    Py_DECREF(descriptor);
    PyType_Modified(type);
    return failed;
}

#endif
