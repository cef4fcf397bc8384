"""weights.py - what hosts lend each other: weights by the ring (R11, R13 and what follows them), and norms of gradients."""
from collections import namedtuple

from explore import check

Slot = namedtuple('Slot', 'unit turn version value here')       # of the ring; value: what the fetch began to read

LENT = 2


class Weights:
    """Part of Hosts (rules.py)."""
    # ---- weights ----------------------------------------------------------------------------------------------

    def stands(self, h, u):
        self.hosts[h].stand |= {u}
        self.update(h, u)

    def update(self, h, u):
        """Pulls of the next version are answered from now on."""
        host = self.hosts[h]
        if u in host.due and self.has_come(host, u):                                                     # R13
            host.due, host.stand = host.due - {u}, host.stand - {u}
            host.turns = {**host.turns, u: host.turns[u] + 1}
            self.todo.append(('local', h, 'updated', u))

    def has_come(self, host, u):
        return u in host.stand

    def units_of(self, q):
        """The units that a pass pulls, in order."""
        return self.plan(q)[1]

    def put(self, h, w, q, new):
        worker = self.hosts[h].workers[w]
        worker.passes = tuple(new if y is q else y for y in worker.passes)

    def value(self, u, turn):
        return self.weights[u][turn & 1 if self.setting.config.replay else 0]

    def find_pull(self, h, w, u, t):
        """The worker's pass that waits for this answer, and the number of the pull in it."""
        for q in self.hosts[h].workers[w].passes:
            known = {k for k, _, _ in q.answered + q.here} | set(q.void)
            for k in range(self.consumed(q), q.asked):
                if q.t == t and self.units_of(q)[k] == u and k not in known:
                    return q, k
        return None, None

    def answer(self, h, w, u, t, where):
        """Local has answered a pull: what is this host's is there; else it has to be lent."""
        host = self.hosts[h]
        q, k = self.find_pull(h, w, u, t)
        found = (k, u, host.turns[u] - (where != 'now'))
        check(not host.local.is_over(t), 'local answers a pull of a step that is over')
        if self.owner_of[u] == h:
            self.copy_norms(h)
            self.give(h, w, q, found, self.value(u, found[2]))
        else:
            self.put(h, w, q, q._replace(answered=q.answered + (found,)))

    def give(self, h, w, q, found, value):
        """The worker hears where the weights are."""
        check(not self.hosts[h].local.is_over(q.t), 'a pull of a step that is over is answered with weights')
        check(value == self.expected(found[1], q.t), 'a pull is answered with another version of unit %d' % found[1])
        check(not self.remembers(found[1]) or self.hosts[h].norms.get(found[1]) == (q.t, self.expected(found[1], q.t)),
              'a worker finds other norms of unit %d' % found[1])
        self.said(h, w, q.t, found[1])
        new = q._replace(here=q.here + (found,), answered=tuple(y for y in q.answered if y != found))
        self.put(h, w, q, new)
        return new

    def said(self, h, w, t, u):
        host = self.hosts[h]
        check((w, t, u) in host.pulls, 'an answer to no pull')
        i = host.pulls.index((w, t, u))
        host.pulls = host.pulls[:i] + host.pulls[i + 1:]

    def void(self, h, w, u, t):
        """The worker hears that there are no weights. It goes on: what it sends is of a step that is over."""
        local = self.hosts[h].local
        check(local.is_over(t) or local.version[u] > t, 'void, but the version stands or will come')
        self.said(h, w, t, u)
        q, k = self.find_pull(h, w, u, t)
        if q:
            self.put(h, w, q, q._replace(void=q.void + (k,)))

    def end_waiting(self, h):
        """Local is covered: nobody whose share counts waits to be lent a unit."""
        for w, worker in sorted(self.hosts[h].workers.items()):
            for q in worker.passes:
                for k, u, _ in q.answered:
                    self.said(h, w, q.t, u)                                                              # R14
                self.put(h, w, q, q._replace(void=q.void + tuple(k for k, _, _ in q.answered), answered=()))

    def consumed(self, q):
        return self.plan(q)[2][q.pc]

    def lent(self, h, q):
        """What it has of the ring."""
        return ((q.held,) if q.held else ()) + tuple((u, turn) for _, u, turn in q.here if self.owner_of[u] != h)

    def next_due(self, h, q):
        """The oldest pull of another host's unit that is not here, if it may be lent: (pull, unit, turn)."""
        if not q.answered:
            return None
        here = {k for k, _, _ in q.here}
        first = next((k for k in range(self.consumed(q), q.asked)
                      if k not in here and self.owner_of[self.units_of(q)[k]] != h), None)
        return next((y for y in q.answered if y[0] == first), None) if len(self.lent(h, q)) < LENT else None     # R11

    def lend(self, h):
        host = self.hosts[h]
        for w, worker in sorted(host.workers.items()):
            for q in worker.passes:
                slot = self.find_lent(h, q)
                while slot:
                    q = self.give(h, w, q, self.next_due(h, q), slot.value)
                    slot = self.find_lent(h, q)

    def find_lent(self, h, q):
        """The slot that the pass is lent now, or None."""
        due = self.next_due(h, q)
        return due and next((s for s in self.hosts[h].ring
                             if s.here and s[:2] == due[1:] and self.has_norms(self.hosts[h], s.unit, q.t)), None)

    def end_passes(self, h, t):
        """Nobody whose share counts reads an earlier version any more: what was lent may be overwritten."""
        for worker in self.hosts[h].workers.values():
            worker.passes = tuple(q if q.t >= t else
                                  q._replace(here=(), held=None, void=q.void + tuple(k for k, _, _ in q.here))
                                  for q in worker.passes)

    def ring_size(self, h):
        n_foreign = len(self.owner_of) - self.setting.n_owned[h]
        return min(n_foreign, LENT * self.setting.n_parts[h] + 1)                                        # R11

    def version_of(self, host, u, turn):
        if u in self.setting.frozen:
            return 10**9
        return host.local.version.get(u, 0) - (host.turns[u] - turn)

    def is_fetching(self, host):
        return any(not s.here and s.version <= host.own.t for s in host.ring)                            # R12

    def may_fetch(self, host, u, turn):
        """Version t, until step t is covered here."""
        return self.version_of(host, u, turn) >= host.own.t + (host.reported == host.own.t)              # R12

    def free_slot(self, h, due):
        """The ring without the slot that makes room, or None: one that nobody reads, nor waits for unless `due`."""
        host = self.hosts[h]
        if len(host.ring) < self.ring_size(h):
            return host.ring
        passes = [q for worker in host.workers.values() for q in worker.passes]
        read = {y for q in passes for y in self.lent(h, q)}
        wanted = {y[1:] for q in passes for y in q.answered}
        i = next((i for i, s in enumerate(host.ring)
                  if s.here and s[:2] not in read and (due or s[:2] not in wanted)), None)
        return None if i is None else host.ring[:i] + host.ring[i + 1:]

    def fetches(self, h):
        """What may be fetched now, as (unit, turn, whether a pass is due to get it)."""
        host = self.hosts[h]
        passes = [q for worker in host.workers.values() for q in worker.passes]
        due = {y[1:] for y in [self.next_due(h, q) for q in passes] if y}
        wanted = sorted({y[1:] for q in passes for y in q.answered} - {s[:2] for s in host.ring})
        return [(*y, y in due) for y in wanted if self.may_fetch(host, *y) and self.free_slot(h, y in due) is not None]

    def fetches_ahead(self, h):
        """Before anybody asks: what stands now."""
        host = self.hosts[h]
        units = [(u, turn) for u, turn in host.turns.items() if self.owner_of[u] != h and
                 not any(s[:2] == (u, turn) for s in host.ring)]
        return [(*y, False) for y in units if self.may_fetch(host, *y) and self.free_slot(h, False) is not None]

    def begin_fetch(self, h, u, turn, due):
        host = self.hosts[h]
        slot = Slot(u, turn, self.version_of(host, u, turn), self.value(u, turn), False)
        host.ring = self.free_slot(h, due) + (slot,)

    def end_fetch(self, h, i):
        """The owner's memory is read at any moment in between."""
        host = self.hosts[h]
        slot = host.ring[i]
        check(slot.value == self.value(slot.unit, slot.turn),
              'what is fetched of unit %d changes meanwhile' % slot.unit)
        check(slot.unit in self.setting.frozen or slot.value == self.expected(slot.unit, slot.version),
              'fetched another version of unit %d' % slot.unit)
        host.ring = host.ring[:i] + (slot._replace(here=True),) + host.ring[i + 1:]

    # ---- norms ------------------------------------------------------------------------------------------------

    def remembers(self, u):
        return u in self.setting.norms and u not in self.setting.frozen

    def copy_norms(self, h):
        """An owner's part of R15. They change with the weights, so the weights' record stands for them."""
        host, t = self.hosts[h], self.hosts[h].own.t
        for u in self.setting.norms:
            if self.owner_of[u] == h and self.remembers(u) and host.norms.get(u, (-1,))[0] < t and \
                    host.reported < t and self.stands_here(host, u):
                host.norms = {**host.norms, u: (t, self.base[u, 0])}
                for x in range(self.n):
                    if x != h:
                        self.tell(h, x, 'norms', t, u)

    def stands_here(self, host, u):
        return host.own.version[u] == host.own.t                                                         # R15

    def find_norms(self, h):
        host = self.hosts[h]
        for u in self.setting.norms:
            known = max([host.norms.get(u, (-1,))[0]] + [y[0] for v, y in host.finding if v == u])
            if self.owner_of[u] != h and self.remembers(u) and known < host.own.t and self.may_find(host, u):
                host.finding += ((u, self.hosts[self.owner_of[u]].norms[u]),)
                if self.setting.coarse:
                    self.end_find(h, 0)

    def may_find(self, host, u):
        return host.told.get(u) == host.own.t and host.reported < host.own.t                             # R15

    def is_finding(self, host):
        return any(host.finding)                                                                         # R15

    def has_norms(self, host, u, t):
        return not self.remembers(u) or host.norms.get(u, (-1,))[0] == t                                 # R15

    def end_find(self, h, i):
        """The owner's copy is read at any moment in between."""
        host = self.hosts[h]
        u, found = host.finding[i]
        check(self.hosts[self.owner_of[u]].norms[u] == found, 'norms of unit %d change while they are fetched' % u)
        host.finding = host.finding[:i] + host.finding[i + 1:]
        host.norms = {**host.norms, u: found}
