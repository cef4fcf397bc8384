"""world.py - what happens to the hosts of rules.py: workers that compute, faults, and what must hold after each move.

As in the relay's own search, the world keeps the numbers that relays do not, as a record: which parts were folded into
a unit in which step. So "as if there were one host" is an equality. What is checked at every move: no name is folded
twice, and each fold reads memory that still holds it; an update finds every part of the step; no pull is ever answered
with a version other than the one it names, and none is left without an answer; versions of all hosts are at most one
apart, as are their steps; accumulators, slots and ring are within bounds; captures read one version on all hosts; live
workers are not refused. At the end of every path: all steps done, the record that of one host, nothing left that waits.
"""
from itertools import accumulate

from explore import Record, check, intern
from rules import Hosts, Host, Worker
from setting import program
from shared import key_relay, Shared
from weights import LENT


class World(Hosts, Record):
    """All hosts with ordered channels between them. move() does one thing that may happen next; see moves()."""
    def copy(self):
        """Hosts and their workers are copied, and what else they hold replaced where it changes."""
        if not self.shared:
            self.shared = [(Shared(), Shared()) for _ in self.hosts]
            for host, (own, local) in zip(self.hosts, self.shared):
                host.own, host.local = own.keep(host.own), local.keep(host.local)
        n = World.__new__(self.__class__)
        n.__dict__.update(self.__dict__)
        n.todo = []
        n.hosts = []
        for host in self.hosts:
            twin = Host.__new__(Host)
            twin.__dict__.update(host.__dict__)
            twin.workers = {}
            for w, worker in host.workers.items():
                twin.workers[w] = Worker.__new__(Worker)
                twin.workers[w].__dict__.update(worker.__dict__)
            n.hosts.append(twin)
        return n

    def feed(self, h, which, event):
        """Feeds an event to a relay of a host: its actions."""
        host = self.hosts[h]
        if not self.shared:
            return (host.local if which else host.own).feed(event)
        if which:
            host.local, actions = self.shared[h][1].feed(host.local, event)
        else:
            host.own, actions = self.shared[h][0].feed(host.own, event)
        return actions

    def key(self):
        hosts = tuple((x.own if self.shared else key_relay(x.own), x.local if self.shared else key_relay(x.local),
                       tuple((w, y.passes, y.slots, y.grant) for w, y in sorted(x.workers.items())),
                       tuple(sorted(x.memory.items())), tuple(x.sent.values()), tuple(sorted(x.grants.items())),
                       x.queue, x.tasks, x.running, x.held, x.due, x.stand, tuple(x.turns.values()), x.ring, x.opening,
                       x.reported, x.skipped, x.verdicts, x.captured, tuple(sorted(x.norms.items())),
                       tuple(sorted(x.told.items())), x.finding) for x in self.hosts)
        return hash((hosts, tuple(self.base.values()), tuple(self.sums.values()), tuple(self.weights.values()),
                     tuple(self.current.values()), tuple(self.channels.values()), self.skipped, self.t, self.reports,
                     self.want_save, self.saves, self.saved, self.faults, self.late, self.bad, self.ended,
                     self.again))

    # ---- what should be ---------------------------------------------------------------------------------------

    def plan(self, q):
        """(its program, the units that it pulls, in order, how many of these before each place in the program)"""
        if (q.t, q.share) not in self.plans:
            say = program(self.setting, q.t, tuple(p for p, _ in q.share))
            pulls = [what == 'pull' for what, _ in say]
            self.plans[q.t, q.share] = (say, [self.setting.visits[x] for what, x in say if what == 'pull'],
                                        list(accumulate(pulls, initial=0)))
        return self.plans[q.t, q.share]

    def program(self, q):
        return self.plan(q)[0]

    # ---- workers ----------------------------------------------------------------------------------------------

    def attach(self, h):
        host = self.hosts[h]
        w, host.n_seen = host.n_seen, host.n_seen + 1
        host.workers[w] = Worker(self.setting.local_slots)
        self.local(h, 'attached', w)
        if host.opening is not None:
            self.open_local(h, host.opening)

    def lose(self, h, w):
        self.forget(h, w)
        self.local(h, 'lost', w)

    def forget(self, h, w):
        host = self.hosts[h]
        del host.workers[w]
        host.pulls = tuple(y for y in host.pulls if y[0] != w)

    def next_message(self, worker, q):
        """(pc, message) of the next thing that a pass says; ('use',): it goes on with what it pulled, and says none."""
        say, n_used, units = self.program(q), self.consumed(q), self.units_of(q)
        at_pull = q.pc < len(say) and say[q.pc][0] == 'pull'
        if q.asked < min(len(units), n_used + at_pull + self.setting.ahead):
            return q.pc, ('pull', q.t, units[q.asked])
        for pc in range(q.pc, len(say)):
            what, x = say[pc]
            if what == 'pull':
                ready = n_used in q.void or any(k == n_used for k, _, _ in q.here)
                return (pc, ('use',)) if pc > q.pc or ready or q.held else None
            if what == 'loss':
                return pc, ('loss', q.t, x, dict(q.share)[x], 'ok')
            if worker.grant and (-x[0],) + x[1:] < (-worker.grant[0],) + worker.grant[1:]:
                continue
            if (q.t, x, dict(q.share)[x[1]]) in worker.slots:
                continue
            slot = next((k for k in range(1, len(worker.slots)) if worker.slots[k] is None), None)
            if slot is None and worker.grant == x and worker.slots[0] is None:
                slot = 0
            return None if slot is None else (pc, ('contribution', q.t, *x, dict(q.share)[x[1]], slot))
        return None

    def send(self, h, w, j, finite=True):
        host = self.hosts[h]
        worker = host.workers[w]
        q = worker.passes[j]
        pc, message = self.next_message(worker, q)
        if message[0] == 'pull':
            q = q._replace(asked=q.asked + 1)
        elif message[0] == 'use':
            q, message = self.use(h, q._replace(pc=pc)), None
        else:
            q = q._replace(pc=pc + 1)
        worker.passes = worker.passes[:j] + ((q,) if q.pc < len(self.program(q)) else ()) + worker.passes[j + 1:]
        if message and message[0] == 'contribution':
            tag = (q.t, message[2:5], message[5])
            worker.slots = worker.slots[:message[6]] + (tag,) + worker.slots[message[6] + 1:]
            host.memory = {**host.memory, (w, message[6]): (tag, finite)}
        if message and message[0] == 'loss' and not finite:
            message = message[:4] + ('bad',)
        if message:
            self.local(h, message[0], w, *message[1:])

    def use(self, h, q):
        """It gives back what it had, when it needs the next; and takes that, if it is here."""
        q, k = q._replace(held=None), self.consumed(q)
        found = next((y for y in q.here if y[0] == k), None)
        if found:
            q = q._replace(here=tuple(y for y in q.here if y != found),
                           held=found[1:] if self.owner_of[found[1]] != h else None)
        return q._replace(pc=q.pc + 1, void=tuple(x for x in q.void if x != k)) if found or k in q.void else q

    # ---- what may happen, and what must hold --------------------------------------------------------------------

    def moves(self):
        """(progress, faults and requests)"""
        go, may = [], []
        if self.ended:
            return go, may
        go += [('deliver', a, b) for (a, b), messages in self.channels.items() if messages]
        for h, host in enumerate(self.hosts):
            go += [('send', h, w, j) for w, worker in sorted(host.workers.items()) for j, q in enumerate(worker.passes)
                   if self.next_message(worker, q)]
            if host.running:
                go.append(('task', h))
            go += [('fetch', h) + y for y in self.fetches(h)]
            c = self.setting.config
            if self.setting.ahead > 1 and (c.replay or c.commit == 'fenced'):   # else updates overwrite what counts
                may += [('fetch', h) + y for y in self.fetches_ahead(h)]
            go += [('fetched', h, i) for i, slot in enumerate(host.ring) if not slot.here]
            go += [('found', h, i) for i in range(len(host.finding))]
            go += [('release', h, u) for u, _ in host.captured]
            if self.late:
                (may if host.workers else go).append(('attach', h))
            if self.faults and host.local.t >= 0:
                for fault in self.setting.faults:
                    if fault == 'kill':
                        may += [('kill', h, w) for w in sorted(host.workers)]
                    elif fault == 'dead':
                        may.append(('dead', h))
                    elif fault == 'again':
                        may += [('again', h, w, j) for w, worker in sorted(host.workers.items())
                                for j, q in enumerate(worker.passes) if q.asked]
                    else:
                        wanted = 'loss' if fault == 'badloss' else 'contribution'
                        may += [(fault, h, w, j) for w, worker in sorted(host.workers.items())
                                for j, q in enumerate(worker.passes)
                                if (self.next_message(worker, q) or (0, ' '))[1][0] == wanted]
        go += [('late', i) for i, (h, w, t, u) in enumerate(self.again) if self.hosts[h].local.is_over(t)]
        if self.saves and len(self.reports) < self.n:
            may.append(('save',))
        return go, may

    def move(self, m):
        what, *x = m
        if what == 'deliver':
            a, b = x
            message, *rest = self.channels[a, b]
            self.channels = {**self.channels, (a, b): tuple(rest)}
            self.todo.append(('heard', b, a, message))
        elif what == 'send':
            self.send(*x)
        elif what == 'task':
            self.finish_task(*x)
        elif what == 'fetch':
            self.begin_fetch(*x)
        elif what == 'fetched':
            self.end_fetch(*x)
        elif what == 'found':
            self.end_find(*x)
        elif what == 'release':
            h, u = x
            host = self.hosts[h]
            version = next(t for v, t in host.captured if v == u)
            host.captured = tuple(y for y in host.captured if y[0] != u)
            for s in range(self.setting.config.slices):
                touched = self.sums[u, s] and not self.is_summed(u)     # what is left of a skipped sum is cleared later
                check(self.base[u, s] == self.expected(u, version) and not touched, 'captured another version')
            self.own(h, 'released', 'disk', u)
        elif what == 'attach':
            self.late -= 1
            self.attach(*x)
        elif what == 'late':
            h, w, t, u = self.again[x[0]]
            self.again = self.again[:x[0]] + self.again[x[0] + 1:]
            if w in self.hosts[h].workers:
                self.local(h, 'pull', w, t, u)
        elif what == 'save':
            self.saves -= 1
            self.ask_save()
        else:
            self.faults -= 1
            if what == 'kill':
                self.lose(*x)
            elif what == 'dead':
                self.ended = 'host %d is lost' % x[0]                                                    # R10
            elif what == 'again':
                h, w, j = x
                q = self.hosts[h].workers[w].passes[j]
                self.again += ((h, w, q.t, self.units_of(q)[q.asked - 1]),)
            else:
                host = self.hosts[x[0]]
                q = host.workers[x[1]].passes[x[2]]
                message = self.next_message(host.workers[x[1]], q)[1]
                self.bad += ((q.t, x[0], message[3] if what == 'bad' else message[2]),)
                if what == 'badloss' and host.local.t == q.t and host.local.loss[message[2]]:
                    self.bad += self.bad[-1:]                   # finite once: counts as the second
                self.send(*x, finite=False)
        self.run()

    def invariants(self):
        versions = [v for host in self.hosts for u, v in host.own.version.items() if u not in self.setting.frozen]
        if versions:
            check(max(versions) - min(versions) <= 1, 'versions are %s' % sorted(versions))
            check(self.t - 1 <= min(versions) and max(versions) <= self.t + 1,
                  'step %d, versions %s' % (self.t, versions))
        steps = [host.own.t for host in self.hosts]
        check(max(steps) - min(steps) <= 1, 'steps are %s' % steps)
        for h, host in enumerate(self.hosts):
            answered = [(w, q.t, u) for w, y in host.workers.items() for q in y.passes for _, u, _ in q.answered]
            answered += host.local.waiting
            check(self.ended or len(answered) == len(host.pulls) and sorted(host.pulls) == sorted(answered),
                  'a pull is left without an answer')
            check(len(host.ring) <= self.ring_size(h), 'ring is full')
            here = {s[:2] for s in host.ring if s.here}
            for worker in host.workers.values():
                for q in worker.passes:
                    lent = self.lent(h, q)
                    check(len(lent) <= LENT, 'a pass has too many units')
                    check(here.issuperset(lent), 'a unit is lent that is not there')
            c = self.setting.config
            if c.commit == 'eager' and c.optimizer == 'adamw' and c.parts > 1:
                used = {u for u in self.accumulated() if self.owner_of[u] == h}
                check(len(used) <= c.accumulators, 'more accumulators than there are')

    def final(self):
        if self.ended:
            return
        if any(not host.workers for host in self.hosts):
            return                                              # the step waits for a worker of that host, and says so
        stuck = [h for h, host in enumerate(self.hosts) if host.own.t < self.setting.steps - 1 or not host.own.covered]
        check(not stuck, 'deadlock in step %d: hosts %s' % (self.t, stuck))
        for host in self.hosts:
            check(not host.own.readers and not host.own.jobs and not host.running and not host.tasks,
                  'something is left')
            check(not any(y for cells in host.own.inbox.values() for y in cells), 'an owner never frees a slot')
            check(not any(y for cells in host.local.inbox.values() for y in cells), 'a slot is never freed')
            check(not host.own.waiting and not host.pulls, 'a pull is never answered')
            check(not host.held and not host.queue and not host.due and not host.finding,
                  'a message, an update or a fetch is left')
        check(not self.saved or len(self.saved) == self.n, 'a save is never finished')
        for (u, s), base in self.base.items():
            check(base == self.expected(u, self.setting.steps), 'the end differs from the fault-free one')
