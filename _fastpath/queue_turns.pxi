"""Inside one cluster: priority first, then namespaces by start-time fair queuing, then first in, first out.

Namespaces weigh the same and each service costs one, so start tags are whole numbers: rounds. A key that is added
gets the round after its namespace's last one, and never one before V, the round of the key that was taken last (nor
one beyond V + the keys that wait: what has left the level without being served has left its turn to the others of
its namespace). So a level is a list for each round from V on, and the last round of each namespace. Everything is O(1), no
namespace has an object of its own, and the tables hold what is of no use any more until they must grow.

A round's list needs no tail: the first record's prev is the last one.
"""

cdef extern from "fair_queue.h":
    const u32 FIRST_ROUND "FQ_FIRST_ROUND"

cdef enum:
    FIRST_HEADS = 8        # rounds, and namespaces, that a new level has room for
    FIRST_SEEN = 16
    KEEP = 64              # entries of an array that a level which went keeps for the next one
    SWEEP = 1 << 30        # rounds after which namespaces of the past must be forgotten: numbers wrap


cdef inline bint past(const Level *l, u32 round) noexcept:
    return <int32_t>(round - l.vround) < 0


cdef inline u64 *seen_slot(const Level *l, u32 ns) noexcept:
    """A namespace's entry in the table, or the free one where it belongs."""
    cdef u32 at = (ns >> 1) & l.seen_mask
    while l.seen[at] and <u32>(l.seen[at] >> 32) != ns:
        at = (at + 1) & l.seen_mask
    return &l.seen[at]


cdef int more_seen(Core *q, Level *l) except -1:
    """Forget namespaces whose last round is past; a larger table where the others fill more than half of it."""
    cdef u64 *old = l.seen
    cdef u32 count = l.seen_mask + 1 if old != NULL else 0, size = FIRST_SEEN, live = 1, i
    for i in range(count):
        live += old[i] != 0 and not past(l, <u32>old[i])
    while size < live * 2:
        size *= 2
    l.seen = <u64 *>calloc(size, sizeof(u64))
    if l.seen == NULL:
        l.seen = old
        raise MemoryError()
    q.level_bytes += (<size_t>size - count) * sizeof(u64)
    l.seen_mask = size - 1
    l.seen_used = live - 1
    for i in range(count):
        if old[i] and not past(l, <u32>old[i]):
            seen_slot(l, <u32>(old[i] >> 32))[0] = old[i]
    free(old)
    return 0


cdef int set_heads(Core *q, Level *l, u32 span) except -1:
    """Room for the lists of so many rounds, and for no more than twice as many."""
    cdef u32 count = l.heads_mask + 1, size = FIRST_HEADS, i
    cdef u32 *old = l.heads
    cdef u32 *new
    while size < span:
        size *= 2
    new = <u32 *>malloc(size * sizeof(u32))
    if new == NULL:
        raise MemoryError()
    memset(new, 0xFF, size * sizeof(u32))
    for i in range(min(count, size)):
        new[(l.vround + i) & (size - 1)] = old[(l.vround + i) & l.heads_mask]
    q.level_bytes += (<size_t>size - count) * sizeof(u32)
    free(old)
    l.heads = new
    l.heads_mask = size - 1
    return 0


cdef int trim_level(Core *q, Level *l) except -1:
    """After a burst: tables that are mostly free become small."""
    cdef u32 span = l.heads_mask + 1
    if l.seen_mask >= KEEP and l.count < l.seen_mask >> 3:
        more_seen(q, l)
    if l.heads_mask >= KEEP and l.count < l.heads_mask >> 3:
        while l.heads[(l.vround + span - 1) & l.heads_mask] == NONE:
            span -= 1
        if span < l.heads_mask >> 1:
            set_heads(q, l, span)
    return 0


cdef u32 level_of(Core *q, u32 cluster, int prio) except? NONE:
    """The cluster's level of this priority, made if it is not there. O(levels), which are few."""
    cdef u32 *link = &q.clusters[cluster].level
    cdef u32 i
    cdef Level *l
    while link[0] != NONE and q.levels[link[0]].prio > prio:
        link = &q.levels[link[0]].next
    if link[0] != NONE and q.levels[link[0]].prio == prio:
        return link[0]
    if q.levels_free == NONE:
        # Links point into the array: find the place again in the new one.
        spare_levels(q)
        return level_of(q, cluster, prio)
    i = q.levels_free
    l = &q.levels[i]
    if l.heads == NULL:
        l.heads = <u32 *>malloc(FIRST_HEADS * sizeof(u32))
        if l.heads == NULL:
            raise MemoryError()
        memset(l.heads, 0xFF, FIRST_HEADS * sizeof(u32))
        l.heads_mask = FIRST_HEADS - 1
        q.level_bytes += FIRST_HEADS * sizeof(u32)
    q.levels_free = l.next
    l.prio = <int16_t>prio
    l.count = 0
    l.vround = FIRST_ROUND
    l.last = l.vround - 1
    l.oldest = 0
    l.next = link[0]
    link[0] = i
    return i


cdef int spare_levels(Core *q) except -1:
    """More levels on the free list."""
    cdef u32 i, had = q.levels_cap
    q.levels = <Level *>grow_lines(q.levels, &q.levels_cap, had + 1, sizeof(Level))
    for i in range(had, q.levels_cap):
        q.levels[i].next = q.levels_free
        q.levels_free = i
    return 0


cdef void drop_level(Core *q, u32 cluster, u32 level) noexcept:
    """An emptied level goes; what it keeps of its arrays is empty."""
    cdef Level *l = &q.levels[level]
    cdef u32 *link = &q.clusters[cluster].level
    check(l.count == 0)
    while link[0] != level:
        link = &q.levels[link[0]].next
    link[0] = l.next
    if q.clusters[cluster].scan_level == level:
        q.clusters[cluster].scan_level = NONE
    if l.heads_mask >= KEEP:
        q.level_bytes -= (<size_t>l.heads_mask + 1) * sizeof(u32)
        free(l.heads)
        l.heads = NULL
    if l.seen_mask >= KEEP:
        q.level_bytes -= (<size_t>l.seen_mask + 1) * sizeof(u64)
        free(l.seen)
        l.seen = NULL
        l.seen_mask = 0
    elif l.seen_used:
        memset(l.seen, 0, (<size_t>l.seen_mask + 1) * sizeof(u64))
    l.seen_used = 0
    l.next = q.levels_free
    q.levels_free = level


cdef inline u32 turn_of(Core *q, u32 level, u32 ns, u64 **slot) except? NONE:
    """The round of a key that is added to a namespace now, and the namespace's entry: NULL is the level's own,
    where a namespace that is alone stays. Allocates all that `append` needs."""
    cdef Level *l = &q.levels[level]
    cdef u32 last, round
    slot[0] = NULL
    if ns == l.ns:
        last = l.last
    elif l.seen_used == 0 and past(l, l.last):
        l.ns = ns
        last = l.vround - 1
    else:
        if (l.seen_used + 1) * 4 > (l.seen_mask + 1) * 3:
            more_seen(q, l)
        slot[0] = seen_slot(l, ns)
        last = <u32>slot[0][0] if slot[0][0] else l.vround - 1
    round = l.vround if past(l, last) else last + (last - l.vround < l.count)
    if round - l.vround > l.heads_mask:
        set_heads(q, l, round - l.vround + 1)
    return round


cdef inline int append(Core *q, u32 i, u32 level, u32 ns) except -1:
    """Put a record where it belongs; its t says since when it waits."""
    cdef u64 *slot
    cdef u32 round = turn_of(q, level, ns, &slot), first
    cdef Level *l = &q.levels[level]
    cdef Rec *r = &q.recs[i]
    if slot == NULL:
        l.last = round
    else:
        l.seen_used += slot[0] == 0
        slot[0] = <u64>ns << 32 | round
    first = l.heads[round & l.heads_mask]
    r.next = NONE
    r.round = round
    r.level = l.prio
    r.state = READY
    if first == NONE:
        l.heads[round & l.heads_mask] = r.prev = i
    else:
        r.prev = q.recs[first].prev
        q.recs[r.prev].next = i
        q.recs[first].prev = i
    if l.count == 0 or r.t < l.oldest:
        l.oldest = r.t
    l.count += 1
    return 0


cdef void sweep(Level *l) noexcept:
    """Forget namespaces of the past before their numbers come to look like the future's."""
    cdef u32 i
    if past(l, l.last):
        l.last = l.vround - 1
    for i in range(l.seen_mask + 1 if l.seen != NULL else 0):
        if l.seen[i] and past(l, <u32>l.seen[i]):
            l.seen[i] = (l.seen[i] >> 32 << 32) | <u32>(l.vround - 1)


cdef inline u32 *first_round(Level *l) noexcept:
    """The list of the first round that has one; V moves there. Something waits in the level."""
    cdef u32 *first = &l.heads[l.vround & l.heads_mask]
    while first[0] == NONE:
        l.vround += 1
        if l.vround & (SWEEP - 1) == 0:
            sweep(l)
        first = &l.heads[l.vround & l.heads_mask]
    return first


cdef inline u32 take(Core *q, u32 cluster, u32 level) noexcept:
    """The next record of a level, out of it; the level goes when it was the last."""
    cdef Level *l = &q.levels[level]
    cdef u32 *first = first_round(l)
    cdef u32 i = first[0], after = q.recs[i].next
    check(q.recs[i].state == READY and q.recs[i].round == l.vround)
    first[0] = after
    if after != NONE:   # brings that record into the cache, too: it is the cluster's next one
        q.recs[after].prev = q.recs[i].prev
    else:
        after = l.heads[(l.vround + 1) & l.heads_mask]
    q.clusters[cluster].hint = after
    q.recs[i].state = IDLE
    l.count -= 1
    if l.count == 0:
        drop_level(q, cluster, level)
    return i


cdef void unlink(Core *q, u32 i, u32 level) noexcept:
    """Take a record out, wherever it stands."""
    cdef Rec *r = &q.recs[i]
    cdef Level *l = &q.levels[level]
    cdef u32 *first = &l.heads[r.round & l.heads_mask]
    check(r.state == READY and first[0] != NONE)
    if first[0] == i:
        first[0] = r.next
        if r.next != NONE:
            q.recs[r.next].prev = r.prev
    else:
        q.recs[r.prev].next = r.next
        q.recs[r.next if r.next != NONE else first[0]].prev = r.prev
    r.state = IDLE
    l.count -= 1
    if l.count:
        first_round(l)


cdef inline u32 coming(const Core *q) noexcept:
    """The cluster that is likely served next. Some is eligible."""
    return q.heap[least_child(q, 0) if q.loose and q.heap_len > 1 else 0].cluster


cdef int move(Core *q, u32 i, u32 cluster, u32 from_level, int prio) except -1:
    """A waiting record to the tail of another priority. Allocates before it changes anything."""
    cdef u32 ns = fq_namespace(q.recs[i].key)
    cdef u32 to = level_of(q, cluster, prio)
    cdef u64 *slot
    try:
        turn_of(q, to, ns, &slot)
    except MemoryError:
        if q.levels[to].count == 0:
            drop_level(q, cluster, to)
        raise
    unlink(q, i, from_level)
    append(q, i, to, ns)
    if q.levels[from_level].count == 0:
        drop_level(q, cluster, from_level)
    return 0


cdef int raise_old(Core *q, u32 cluster, double now) except -1:
    """Items that wait longer than max_wait count as the cluster's highest priority.

    Called when more than one level waits. Goes through the rounds of a level only when its oldest item may be
    due, at most 64 times a max_wait and cluster. One call moves at most 1,000 items and looks at 4,096 rounds;
    the next one goes on from there."""
    cdef Cluster *c = &q.clusters[cluster]
    cdef Level *l
    cdef int top = q.levels[c.level].prio
    cdef u32 level = q.levels[c.level].next, below, i, moves = 1000, looks = 4096
    if now < c.scan_at:
        return 0
    while level != NONE:
        l = &q.levels[level]
        below = l.next
        if now - l.oldest > q.max_wait:
            c.scan_at = now + q.max_wait / 64
            if c.scan_level != level or past(l, c.scan_round):
                c.scan_level, c.scan_round, c.scan_oldest = level, l.vround, now
            while l.count and c.scan_round - l.vround <= l.heads_mask:
                i = l.heads[c.scan_round & l.heads_mask]
                if i != NONE and now - q.recs[i].t > q.max_wait and moves:
                    moves -= 1
                    move(q, i, cluster, level, top)
                    if past(l, c.scan_round):
                        c.scan_round = l.vround
                    continue
                if moves == 0 or looks == 0:
                    # What comes late into rounds that were looked at is found in time by looking again soon.
                    c.scan_oldest = min(c.scan_oldest, now - q.max_wait / 2)
                    c.scan_at = 0
                    return 0
                looks -= 1
                if i != NONE:
                    c.scan_oldest = min(c.scan_oldest, q.recs[i].t)
                c.scan_round += 1
            l.oldest = c.scan_oldest
            c.scan_level = NONE
        level = below
    return 0


cdef inline bint bulky(const Core *q) noexcept:
    """Whether `shrink` has something to do."""
    return (q.recs_cap > 4096 and q.recs_live < q.recs_cap >> 3) or (q.runs_cap > 4096 and q.processing == 0)


cdef int shrink(Core *q) except -1:
    """Give back what only a burst needed."""
    cdef u32 i
    if q.recs_cap > 4096 and q.recs_live < q.recs_cap >> 3:
        compact_recs(q)
        for i in range(q.levels_cap):
            if q.levels[i].count:
                trim_level(q, &q.levels[i])
    if q.runs_cap > 4096 and q.processing == 0:   # items know their run by its number: only all at once
        free(q.runs)
        q.runs = NULL
        q.runs_cap = q.runs_top = 0
        q.runs_free = NONE
    return 0
