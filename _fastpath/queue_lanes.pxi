"""Inside one cluster: priority first, then namespaces in turn, then first in, first out.

Start-time fair queuing over namespaces of equal weight, each service costing one, is a ring: a namespace
that becomes active joins at its end, one that was served moves there. So it costs O(1) and no heap.
"""

cdef inline u32 find_lane(const Core *q, u32 level, u32 ns) noexcept:
    cdef u32 hash = fq_mix(ns, level), at = hash & q.lane_table.mask
    cdef u64 slot
    if q.lane_table.slots == NULL:
        return NONE
    while True:
        slot = q.lane_table.slots[at]
        if slot == 0:
            return NONE
        if <u32>(slot >> 32) == hash and q.lanes[<u32>slot - 1].ns == ns and q.lanes[<u32>slot - 1].level == level:
            return <u32>slot - 1
        at = (at + 1) & q.lane_table.mask


cdef inline void prefetch_lane(const Core *q, u32 cluster, PyObject *key) noexcept:
    """Where the key's lane will be looked up, if it comes to wait at its cluster's highest level."""
    if q.clusters[cluster].level != NONE:
        fq_prefetch(&q.lane_table.slots[fq_mix(fq_namespace(key), q.clusters[cluster].level) & q.lane_table.mask])


cdef u32 new_lane(Core *q, u32 level, u32 ns) except? NONE:
    """A lane at the end of the level's ring."""
    cdef u32 i
    cdef Lane *lane
    cdef Level *l
    table_room(&q.lane_table)
    if q.lanes_free != NONE:
        i = q.lanes_free
        q.lanes_free = q.lanes[i].next
    else:
        if q.lanes_top == q.lanes_cap:
            q.lanes = <Lane *>grow(q.lanes, &q.lanes_cap, q.lanes_top + 1, sizeof(Lane))
        i = q.lanes_top
        q.lanes_top += 1
    lane = &q.lanes[i]
    l = &q.levels[level]
    lane.ns = ns
    lane.level = level
    lane.head = NONE   # then its tail says nothing
    if l.tail == NONE:
        lane.next = i
    else:
        lane.next = q.lanes[l.tail].next
        q.lanes[l.tail].next = i
    l.tail = i
    table_insert(&q.lane_table, fq_mix(ns, level), i)
    q.lanes_live += 1
    return i


cdef void drop_front_lane(Core *q, u32 level) noexcept:
    cdef Level *l = &q.levels[level]
    cdef u32 front = q.lanes[l.tail].next
    cdef Lane *lane = &q.lanes[front]
    if front == l.tail:
        l.tail = NONE
    else:
        q.lanes[l.tail].next = lane.next
    table_delete(&q.lane_table, fq_mix(lane.ns, level), front)
    lane.level = NONE
    lane.next = q.lanes_free
    q.lanes_free = front
    q.lanes_live -= 1


cdef u32 level_of(Core *q, u32 cluster, int prio) except? NONE:
    """The cluster's level of this priority, made if it is not there. O(levels), which are few."""
    cdef u32 *link = &q.clusters[cluster].level
    cdef u32 i, after
    cdef Level *l
    while link[0] != NONE and q.levels[link[0]].prio > prio:
        link = &q.levels[link[0]].next
    if link[0] != NONE and q.levels[link[0]].prio == prio:
        return link[0]
    after = link[0]
    if q.levels_free != NONE:
        i = q.levels_free
        q.levels_free = q.levels[i].next
    elif q.levels_top < q.levels_cap:
        i = q.levels_top
        q.levels_top += 1
    else:   # links point into the array: find the place again in the new one
        q.levels = <Level *>grow(q.levels, &q.levels_cap, q.levels_top + 1, sizeof(Level))
        return level_of(q, cluster, prio)
    l = &q.levels[i]
    l.cluster = cluster
    l.prio = <int16_t>prio
    l.count = 0
    l.tail = NONE
    l.oldest = 0
    l.next = after
    link[0] = i
    return i


cdef void drop_level(Core *q, u32 level) noexcept:
    """An emptied level goes, with the lanes that were emptied out of turn."""
    cdef Level *l = &q.levels[level]
    cdef u32 *link = &q.clusters[l.cluster].level
    while l.tail != NONE:
        drop_front_lane(q, level)
    while link[0] != level:
        link = &q.levels[link[0]].next
    link[0] = l.next
    l.next = q.levels_free
    q.levels_free = level


cdef inline int append(Core *q, u32 i, u32 level, u32 ns) except -1:
    """Put a record at the end of its namespace's lane; its t says since when it waits."""
    cdef u32 n = find_lane(q, level, ns)
    cdef Rec *r
    cdef Lane *lane
    cdef Level *l = &q.levels[level]
    if n == NONE:
        n = new_lane(q, level, ns)
    lane = &q.lanes[n]
    r = &q.recs[i]
    r.next = NONE
    r.prev = lane.tail
    r.level = l.prio
    r.state = READY
    if lane.head == NONE:
        lane.head = i
    else:
        q.recs[lane.tail].next = i
    lane.tail = i
    if l.count == 0 or r.t < l.oldest:
        l.oldest = r.t
    l.count += 1
    return 0


cdef inline void unlink(Core *q, u32 i, u32 level, u32 n) noexcept:
    """Take a record out of lane n, wherever it stands there. An emptied lane stays until its turn."""
    cdef Rec *r = &q.recs[i]
    cdef Lane *lane = &q.lanes[n]
    if lane.head == i:   # its prev says nothing: the one before it left without looking at it
        lane.head = r.next
    elif r.next == NONE:
        lane.tail = r.prev
        q.recs[r.prev].next = NONE
    else:
        q.recs[r.prev].next = r.next
        q.recs[r.next].prev = r.prev
    r.state = IDLE
    q.levels[level].count -= 1


cdef inline u32 take(Core *q, u32 level) noexcept:
    """The next record of a level, out of its lane; the level goes when it was the last."""
    cdef Level *l = &q.levels[level]
    cdef u32 front = q.lanes[l.tail].next, i
    while q.lanes[front].head == NONE:
        drop_front_lane(q, level)
        front = q.lanes[l.tail].next
    i = q.lanes[front].head
    check(q.recs[i].state == READY and q.lanes[front].level == level)
    unlink(q, i, level, front)
    if q.lanes[front].head == NONE:
        drop_front_lane(q, level)
    else:
        l.tail = front
    if l.count == 0:
        drop_level(q, level)
    else:   # whose turn it is next, for when the cluster's turn comes
        fq_prefetch(&q.lanes[q.lanes[l.tail].next])
    return i


cdef inline u32 coming(const Core *q) noexcept:
    """The record that is likely handed out next, NONE when none is known."""
    if q.heap_len == 0:
        return NONE
    return q.lanes[q.lanes[q.levels[q.clusters[q.heap[0].cluster].level].tail].next].head


cdef int move(Core *q, u32 i, u32 cluster, u32 from_level, int prio) except -1:
    """A waiting record to the tail of another priority. Allocates before it changes anything."""
    cdef u32 ns = fq_namespace(q.recs[i].key)
    cdef u32 to = level_of(q, cluster, prio)
    try:
        if find_lane(q, to, ns) == NONE:
            new_lane(q, to, ns)
    except MemoryError:
        if q.levels[to].count == 0:
            drop_level(q, to)
        raise
    unlink(q, i, from_level, find_lane(q, from_level, ns))
    append(q, i, to, ns)
    if q.levels[from_level].count == 0:
        drop_level(q, from_level)
    return 0


cdef int raise_old(Core *q, u32 cluster, double now) except -1:
    """Items that wait longer than max_wait count as the cluster's highest priority.

    Called when more than one level waits. Looks through the lanes of a level only when its oldest item may
    be due, at most 64 times a max_wait and cluster; moves at most 1,000 items a call."""
    cdef Cluster *c = &q.clusters[cluster]
    cdef int top = q.levels[c.level].prio
    cdef u32 level = q.levels[c.level].next, below, lane, last, left = 1000
    cdef double oldest
    cdef bint gone
    if now < c.scan_at:
        return 0
    while level != NONE:
        below = q.levels[level].next
        if now - q.levels[level].oldest > q.max_wait:
            c.scan_at = now + q.max_wait / 64
            oldest = now
            last = q.levels[level].tail
            lane = q.lanes[last].next
            gone = False
            while True:
                while q.lanes[lane].head != NONE and now - q.recs[q.lanes[lane].head].t > q.max_wait and left:
                    left -= 1
                    gone = q.levels[level].count == 1
                    move(q, q.lanes[lane].head, cluster, level, top)
                    if gone:
                        break
                if gone:
                    break
                if q.lanes[lane].head != NONE:
                    oldest = min(oldest, q.recs[q.lanes[lane].head].t)
                if lane == last:
                    break
                lane = q.lanes[lane].next
            if not gone:
                q.levels[level].oldest = oldest
            if left == 0:
                c.scan_at = 0
                return 0
        level = below
    return 0
