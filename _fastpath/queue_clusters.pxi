"""Between clusters: start-time fair queuing with charging by time; a 4-ary heap of eligible clusters.

A cluster is in the heap exactly while something of it waits, it is below its cap and not paused.
"""

cdef inline void place(Core *q, u32 pos, const fq_ent *e) noexcept:
    check(pos < q.heap_len)
    q.heap[pos] = e[0]
    q.pos[e.cluster] = pos


cdef inline void sift_up(Core *q, u32 pos) noexcept:
    cdef fq_ent e = q.heap[pos]
    cdef u32 parent
    while pos:
        parent = (pos - 1) >> 2
        if not fq_less(&e, &q.heap[parent]):
            break
        place(q, pos, &q.heap[parent])
        pos = parent
    place(q, pos, &e)


cdef inline u32 least_child(const Core *q, u32 pos) noexcept:
    """Of an entry that has children."""
    cdef u32 child = pos * 4 + 1, best = child, stop = min(child + 4, q.heap_len)
    child += 1
    while child < stop:
        best = child if fq_less(&q.heap[child], &q.heap[best]) else best
        child += 1
    return best


cdef inline void sift_down(Core *q, u32 pos) noexcept:
    cdef fq_ent e = q.heap[pos]
    cdef u32 best
    while pos * 4 + 1 < q.heap_len:
        best = least_child(q, pos)
        if not fq_less(&q.heap[best], &e):
            break
        place(q, pos, &q.heap[best])
        pos = best
    place(q, pos, &e)


cdef inline void tidy(Core *q) noexcept:
    """A cluster that was served stays first until somebody looks: often its call is over by then, and it moves once."""
    if q.loose:
        q.loose = False
        sift_down(q, 0)


cdef inline void sift(Core *q, u32 pos) noexcept:
    """To where it belongs, from a place that may be wrong either way."""
    if pos and fq_less(&q.heap[pos], &q.heap[(pos - 1) >> 2]):
        sift_up(q, pos)
    else:
        sift_down(q, pos)


cdef inline fq_ent entry(const Core *q, u32 cluster) noexcept:
    cdef fq_ent e
    cdef const Cluster *c = &q.clusters[cluster]
    e.tag = fq_bits(c.tag)
    e.turn = c.turn
    e.cluster = cluster
    e.rank = <u32>(32767 - q.levels[c.level].prio) if q.priority_first else 0
    return e


cdef inline void leave(Core *q, u32 pos) noexcept:
    """Take one cluster out of the heap."""
    cdef fq_ent last
    q.pos[q.heap[pos].cluster] = NONE
    q.heap_len -= 1
    if pos < q.heap_len:
        last = q.heap[q.heap_len]
        place(q, pos, &last)
        sift(q, pos)


cdef inline bint eligible(const Cluster *c) noexcept:
    return c.ready > 0 and c.in_flight < c.cap and c.engaged and not c.paused


cdef inline bint charge(Core *q, Cluster *c, double now) noexcept:
    """Charge running calls for the time that passed. True when the tag moved. O(running calls)."""
    cdef u32 i = c.runs
    cdef Run *run
    cdef u32 parts
    cdef bint moved = False
    c.charge_at = INFINITY
    while i != NONE:
        run = &q.runs[i]
        parts = <u32>min(max((now - run.start) / q.work, 0.0), 4e9)
        if parts > run.charged:
            c.tag += (parts - run.charged) * run.unit
            run.charged = parts
            moved = True
        c.charge_at = min(c.charge_at, run.start + (run.charged + 1) * q.work)
        i = run.next
    return moved


cdef int settle_place(Core *q, u32 cluster, double now) except -1:
    """Put the cluster where its state says it belongs: into the heap, out of it, to its new place."""
    cdef Cluster *c = &q.clusters[cluster]
    if q.pos[cluster] == 0:
        q.loose = False
    else:
        tidy(q)
    if not eligible(c):
        if q.pos[cluster] != NONE:
            leave(q, q.pos[cluster])
        return 0
    if q.pos[cluster] == NONE:
        if q.heap_len == q.heap_cap:
            q.heap = <fq_ent *>grow(q.heap, &q.heap_cap, q.heap_len + 1, sizeof(fq_ent))
        # Becoming active, or leaving the cap or a pause: no credit for the time away.
        if now >= c.charge_at:
            charge(q, c, now)
        c.tag = max(c.tag, q.vtime)
        q.pos[cluster] = q.heap_len
        q.heap_len += 1
    q.heap[q.pos[cluster]] = entry(q, cluster)
    sift(q, q.pos[cluster])
    return 0


cdef inline u32 next_cluster(Core *q, double now) noexcept:
    """The cluster whose turn it is, NONE when none is eligible.

    Tags of clusters with running calls grow as time passes; growing only, so looking at the top until it
    stands is enough."""
    cdef u32 cluster
    cdef Cluster *c
    tidy(q)
    while q.heap_len:
        cluster = q.heap[0].cluster
        c = &q.clusters[cluster]
        if now < c.charge_at or not charge(q, c, now):
            return cluster
        q.heap[0].tag = fq_bits(c.tag)
        sift_down(q, 0)
    return NONE


cdef inline u32 new_run(Core *q, u32 rec, u32 cluster, double now) except? NONE:
    cdef u32 i
    cdef Run *run
    cdef Cluster *c = &q.clusters[cluster]
    if q.runs_free != NONE:
        i = q.runs_free
        q.runs_free = q.runs[i].next
    else:
        if q.runs_top == q.runs_cap:
            q.runs = <Run *>grow(q.runs, &q.runs_cap, q.runs_top + 1, sizeof(Run))
        i = q.runs_top
        q.runs_top += 1
    run = &q.runs[i]
    q.serial += 1
    run.serial = q.serial
    run.start = now
    run.due = -1
    run.unit = c.unit
    run.rec = rec
    run.cluster = cluster
    run.charged = 0
    run.dirty = run.orphan = 0
    run.prev = NONE
    run.next = c.runs
    if c.runs != NONE:
        q.runs[c.runs].prev = i
    c.runs = i
    c.charge_at = min(c.charge_at, now + q.work)
    return i


cdef inline void drop_run(Core *q, u32 i) noexcept:
    cdef Run *run = &q.runs[i]
    if not run.orphan:
        if run.prev == NONE:
            q.clusters[run.cluster].runs = run.next
        else:
            q.runs[run.prev].next = run.next
        if run.next != NONE:
            q.runs[run.next].prev = run.prev
    run.serial = 0
    run.next = q.runs_free
    q.runs_free = i
