"""Keys to be added later: a binary heap by due time. Nothing polls: the earliest time arms one timer."""

cdef inline bint sooner(const Delay *a, const Delay *b) noexcept:
    return a.due < b.due or (a.due == b.due and a.order < b.order)


cdef inline void put_delay(Core *q, u32 pos, const Delay *d) noexcept:
    check(pos < q.delays_len)
    q.delays[pos] = d[0]
    q.recs[d.rec].prev = pos


cdef void delay_up(Core *q, u32 pos) noexcept:
    cdef Delay d = q.delays[pos]
    cdef u32 parent
    while pos:
        parent = (pos - 1) >> 1
        if not sooner(&d, &q.delays[parent]):
            break
        put_delay(q, pos, &q.delays[parent])
        pos = parent
    put_delay(q, pos, &d)


cdef void delay_down(Core *q, u32 pos) noexcept:
    cdef Delay d = q.delays[pos]
    cdef u32 child
    while True:
        child = pos * 2 + 1
        if child >= q.delays_len:
            break
        if child + 1 < q.delays_len and sooner(&q.delays[child + 1], &q.delays[child]):
            child += 1
        if not sooner(&q.delays[child], &d):
            break
        put_delay(q, pos, &q.delays[child])
        pos = child
    put_delay(q, pos, &d)


cdef int delay(Core *q, u32 i, double due) except -1:
    """Make an IDLE record DELAYED."""
    cdef Delay d
    if q.delays_len == q.delays_cap:
        q.delays = <Delay *>grow(q.delays, &q.delays_cap, q.delays_len + 1, sizeof(Delay))
    q.order += 1
    d.due, d.order, d.rec = due, q.order, i
    q.delays_len += 1
    q.recs[i].state = DELAYED
    put_delay(q, q.delays_len - 1, &d)
    delay_up(q, q.delays_len - 1)
    q.clusters[q.recs[i].cluster].delayed += 1
    return 0


cdef void undelay(Core *q, u32 i) noexcept:
    """Make a DELAYED record IDLE."""
    cdef u32 pos = q.recs[i].prev
    cdef Delay last
    check(q.recs[i].state == DELAYED and q.delays[pos].rec == i)
    q.delays_len -= 1
    if pos < q.delays_len:
        last = q.delays[q.delays_len]
        put_delay(q, pos, &last)
        delay_up(q, pos)
        delay_down(q, q.recs[last.rec].prev)
    q.recs[i].state = IDLE
    q.clusters[q.recs[i].cluster].delayed -= 1
