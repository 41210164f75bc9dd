"""The queue's memory: records in one slab, links are 32-bit indices, no Python object per queued key."""

ctypedef uint32_t u32
ctypedef uint64_t u64

cdef extern from "fair_queue.h":
    const u32 NONE "FQ_NONE"
    enum: BUCKETS "FQ_BUCKETS"
    enum: GUESSES "FQ_GUESSES"

cdef enum State:
    FREE, IDLE, READY, DELAYED, PROCESSING   # IDLE: known for its back-off only

cdef struct Rec:
    # One known key; 40 bytes. What prev and next mean depends on the state.
    PyObject *key         # owned; its hash is in it
    double t              # READY: waiting since
    u32 prev              # READY: neighbour, of a round's first one the last; DELAYED: place in the delay heap; PROCESSING: its run
    u32 next              # READY: neighbour; FREE: next free one
    u32 cluster
    u32 round             # READY: which round of its level
    int16_t prio          # as asked for
    int16_t level         # READY: where it waits; above prio when it has waited too long
    uint8_t state
    uint8_t spare
    uint16_t attempts     # rate-limited adds since forget()

cdef struct Level:
    # One priority of one cluster; exists while something waits in it. See queue_turns.pxi. One cache line.
    u32 *heads            # round & heads_mask -> its first record, of the rounds from vround on
    u64 *seen             # open addressing: hash of a namespace << 32 | its last round; 0: free
    double oldest         # no item of the level waits longer than since then
    u32 heads_mask
    u32 seen_mask
    u32 seen_used
    u32 vround            # V: the round of the item that was taken last
    u32 ns, last          # one namespace and its last round, beside the table
    u32 count
    u32 next              # next lower level; free: next free one
    int16_t prio

cdef struct Run:
    # One key being processed. Few (as many as workers), so they stay in the cache.
    double start
    double due            # added again meanwhile, for then; < 0: not
    double unit           # 1/weight when it began: one expected_work of it costs this
    u64 serial            # which item holds it; 0: free
    u32 rec
    u32 cluster
    u32 prev, next        # of the same cluster; free: next free one
    u32 charged           # further expected_work's charged so far
    int16_t prio
    uint8_t dirty         # added again meanwhile, at once
    uint8_t orphan        # its cluster was disengaged since

cdef struct Spread:
    # How many waits and works were how long, by fq_bucket.
    u64 waits[BUCKETS]
    u64 works[BUCKETS]

cdef struct Cluster:
    # The first cache line is what each add, take and done needs, the second what they count.
    double tag            # S of start-time fair queuing
    double unit           # 1/weight
    double charge_at      # when a running call must be charged next
    u64 turn              # when it was served last
    u32 level             # highest level that has items
    u32 runs              # its running calls, orphans excepted
    u32 in_flight
    u32 cap
    u32 ready
    u32 records           # slab records of it
    u32 hint              # the record that is likely its next one, or was: for prefetching only
    uint8_t engaged
    uint8_t paused
    Spread *spread        # from its first service on
    u64 adds, served, retries
    double queue_seconds, work_seconds
    double weight
    double scan_at        # not before then are old items looked for
    double scan_oldest    # what raise_old has seen of scan_level, up to scan_round; NONE: it is not at it
    u32 scan_level, scan_round
    double rate           # token bucket, per second; 0: none
    double burst
    double bucket_at
    u32 delayed
    u32 orphans           # running calls of past generations

cdef struct Delay:
    double due
    u64 order             # first in, first out among equal times
    u32 rec

cdef struct Table:
    # Open addressing, linear probing, deletion by shifting back. Slot: hash << 32 | index + 1; 0: free.
    u64 *slots
    u32 mask
    u32 used

cdef struct Core:
    Rec *recs
    u32 recs_cap, recs_top, recs_free, recs_live
    Level *levels
    u32 levels_cap, levels_free
    size_t level_bytes    # of the levels' arrays
    Run *runs
    u32 runs_cap, runs_top, runs_free
    Cluster *clusters
    u32 clusters_cap
    u32 guesses[GUESSES]  # place of a name's str in memory -> the cluster that had that name last time
    fq_ent *heap
    u32 heap_cap, heap_len
    u32 *pos              # of each cluster in the heap; NONE: not eligible
    u32 pos_cap
    bint loose            # the first one's tag has grown and it has not been moved down yet
    Delay *delays
    u32 delays_cap, delays_len
    Table keys
    double vtime          # V of start-time fair queuing
    double work           # expected_work, G
    double per_work       # 1 / G
    double max_wait
    u64 serial
    u64 order
    u32 ready
    u32 processing
    u32 spreads
    bint priority_first


cdef void *grow(void *old, u32 *cap, u32 need, size_t size) except NULL:
    """An array with room for `need`: by a quarter more, which realloc moves as pages, not bytes."""
    cdef u64 wanted = max(<u64>need, <u64>cap[0] + (cap[0] >> 2), <u64>16)
    cdef void *new
    if wanted >= NONE:
        raise MemoryError("the queue holds as many keys as it can number")
    new = realloc(old, wanted * size)
    if new == NULL:
        raise MemoryError()
    cap[0] = <u32>wanted
    return new


cdef void *grow_lines(void *old, u32 *cap, u32 need, size_t size) except NULL:
    """`grow` for few elements of whole cache lines, which must not lie across them."""
    cdef u64 had = cap[0], wanted = max(<u64>need, had + (had >> 1), <u64>16)
    cdef void *new
    if wanted >= NONE:
        raise MemoryError("the queue holds as many clusters as it can number")
    if posix_memalign(&new, 64, wanted * size):
        raise MemoryError()
    memcpy(new, old, had * size)
    memset(<char *>new + had * size, 0, (wanted - had) * size)
    free(old)
    cap[0] = <u32>wanted
    return new


cdef int table_resize(Table *t, u32 size) except -1:
    cdef u64 *old = t.slots
    cdef u64 *new = <u64 *>calloc(size, sizeof(u64))
    cdef u64 i, at, count = <u64>t.mask + 1 if old != NULL else 0
    if new == NULL:
        raise MemoryError()
    for i in range(count):
        if old[i]:
            at = (old[i] >> 32) & (size - 1)
            while new[at]:
                at = (at + 1) & (size - 1)
            new[at] = old[i]
    t.slots = new
    t.mask = size - 1
    free(old)
    return 0


cdef inline int table_room(Table *t) except -1:
    """Before an insertion: at most three quarters are ever used."""
    if t.slots == NULL or <u64>(t.used + 1) * 4 > (<u64>t.mask + 1) * 3:
        table_resize(t, 64 if t.slots == NULL else (t.mask + 1) * 2)
    return 0


cdef inline void table_insert(Table *t, u32 hash, u32 index) noexcept:
    cdef u32 at = hash & t.mask
    while t.slots[at]:
        at = (at + 1) & t.mask
    t.slots[at] = <u64>hash << 32 | (index + 1)
    t.used += 1


cdef inline void table_delete(Table *t, u32 hash, u32 index) noexcept:
    cdef u64 wanted = <u64>hash << 32 | (index + 1)
    cdef u32 at = hash & t.mask, hole, home
    while t.slots[at] != wanted:
        check(t.slots[at] != 0)
        at = (at + 1) & t.mask
    hole = at
    while True:
        at = (at + 1) & t.mask
        if t.slots[at] == 0:
            break
        home = <u32>(t.slots[at] >> 32) & t.mask
        if ((at - home) & t.mask) >= ((at - hole) & t.mask):
            t.slots[hole] = t.slots[at]
            hole = at
    t.slots[hole] = 0
    t.used -= 1


cdef inline void prefetch_rec(const Rec *r) noexcept:
    """Half of all records lie in two cache lines."""
    fq_prefetch(r)
    fq_prefetch(&r.state)


cdef inline u32 find_key(const Core *q, u32 cluster, u32 hash, PyObject *key) noexcept:
    cdef u32 at = hash & q.keys.mask
    cdef u64 slot
    cdef const Rec *r
    if q.keys.slots == NULL:
        return NONE
    while True:
        slot = q.keys.slots[at]
        if slot == 0:
            return NONE
        if <u32>(slot >> 32) == hash:
            r = &q.recs[<u32>slot - 1]
            check(<u32>slot <= q.recs_top and r.state != FREE)
            if r.cluster == cluster and fq_same_key(r.key, key):
                return <u32>slot - 1
        at = (at + 1) & q.keys.mask


cdef inline u32 new_rec(Core *q, u32 cluster, u32 hash, PyObject *key, int prio) except? NONE:
    cdef u32 i
    cdef Rec *r
    table_room(&q.keys)
    if q.recs_free != NONE:
        i = q.recs_free
        q.recs_free = q.recs[i].next
    else:
        if q.recs_top == q.recs_cap:
            q.recs = <Rec *>grow(q.recs, &q.recs_cap, q.recs_top + 1, sizeof(Rec))
        i = q.recs_top
        q.recs_top += 1
    r = &q.recs[i]
    Py_INCREF(<object>key)
    r.key = key
    r.cluster = cluster
    r.prio = <int16_t>prio
    r.attempts = 0
    r.state = IDLE
    table_insert(&q.keys, hash, i)
    q.recs_live += 1
    q.clusters[cluster].records += 1
    return i


cdef inline u32 key_hash(PyObject *key, u32 cluster) noexcept:
    """Of a key in the table."""
    return fq_mix(fq_str_hash(key), cluster)


cdef inline void drop_rec(Core *q, u32 i) noexcept:
    """Forget an IDLE key."""
    cdef Rec *r = &q.recs[i]
    cdef PyObject *key = r.key
    check(r.state == IDLE and q.clusters[r.cluster].records > 0)
    table_delete(&q.keys, key_hash(key, r.cluster), i)
    q.clusters[r.cluster].records -= 1
    r.key = NULL
    r.state = FREE
    r.next = q.recs_free
    q.recs_free = i
    q.recs_live -= 1
    Py_DECREF(<object>key)   # a str: runs no code of anybody's


cdef int compact_recs(Core *q) except -1:
    """After a burst: the live records move together, the rest goes back to the system. O(capacity)."""
    cdef u32 cap = q.recs_live + (q.recs_live >> 2) + 16, n = 0, i, k, size = 64
    cdef u64 *slots = NULL
    cdef u64 *old
    cdef u64 at, count = <u64>q.keys.mask + 1
    cdef Level *l
    cdef Rec *recs = <Rec *>malloc(cap * sizeof(Rec))
    cdef u32 *moved = <u32 *>malloc(<size_t>q.recs_top * sizeof(u32))
    while size < q.recs_live * 2:
        size *= 2
    slots = <u64 *>calloc(size, sizeof(u64))
    if recs == NULL or moved == NULL or slots == NULL:   # no room to make room: stay as we are
        free(recs)
        free(moved)
        free(slots)
        return 0
    for i in range(q.recs_top):
        moved[i] = n
        if q.recs[i].state != FREE:
            recs[n] = q.recs[i]
            n += 1
    for i in range(n):
        if recs[i].state == READY:
            recs[i].prev = moved[recs[i].prev]
            recs[i].next = NONE if recs[i].next == NONE else moved[recs[i].next]
    for i in range(q.levels_cap):
        l = &q.levels[i]
        for k in range(l.heads_mask + 1 if l.count else 0):
            if l.heads[k] != NONE:
                l.heads[k] = moved[l.heads[k]]
    for i in range(q.delays_len):
        q.delays[i].rec = moved[q.delays[i].rec]
    for i in range(q.runs_top):
        if q.runs[i].serial:
            q.runs[i].rec = moved[q.runs[i].rec]
    old = q.keys.slots
    q.keys.slots = slots
    q.keys.mask = size - 1
    q.keys.used = 0
    for at in range(count):   # hashes are here: the keys themselves need not be looked at
        if old[at]:
            table_insert(&q.keys, <u32>(old[at] >> 32), moved[<u32>old[at] - 1])
    free(old)
    free(moved)
    free(q.recs)
    q.recs = recs
    q.recs_cap, q.recs_top, q.recs_free = cap, n, NONE
    if q.delays_cap > 64 and q.delays_len < q.delays_cap >> 3:
        q.delays_cap = max(q.delays_len * 2, 16)
        q.delays = <Delay *>realloc(q.delays, q.delays_cap * sizeof(Delay))
    return 0
