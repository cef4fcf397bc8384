"""rules.py - several hosts train one model: the specification, composed of unmodified relays.

Each host runs two relays of tests/eps/relay/relay.py:
  own     over the visits of the units that this host owns, with all P parts. Its workers are the hosts, itself
          included; an inbox of it holds the slices that a host has sent and that are not folded yet.
  local   over all visits, with this host's parts alone. Its workers are this host's workers. A fold of it is "send
          this slice to the unit's owner": done when the owner frees the slice. An update of it is done when the owner
          has said that the next version stands. Pulls are answered here; the weights are fetched from the owner's
          memory into a slot of the ring, and lent from there to all workers that want them.
So losing, replacing and adding workers stays within one host, and an owner sees hosts that never change. The rules that
the relays alone do not have, each at the lines below that name it; search.py has a mutant that breaks each but R10:

  R1  local folds the parts of a slice in order (deterministic), whatever own does. A slice that waits for the owner's
      slot would block an earlier part of the same slice, which the owner waits for.
  R2  A slice leaves local when the owner frees it, not when it was sent: until then its memory is in use.
  R3  Every host hears of every loss that is the first of its part, on the channel that the part's slices use.
  R4  Step t+1 opens when every own and every local is covered. Until then version t stands in the replay buffer, though
      the owner's units are all updated: a part may have to be redone for the units of another.
  R5  Messages of a step that is not open here yet wait: channels of different hosts are not ordered.
  R6  Updates of a fenced step wait for the verdict of all hosts. If one skips, the others update nothing, too.
  R7  A save reaches all owners between covered t and open t+1, so all read the same version.
  R8  A slice is checked finite by the host that sends it (unless fenced), so the worker at fault is known there.
  R9  A grant names its step: it may arrive when the next step is open, and name a slice that left by another slot.
  R10 A host that cannot finish its parts ends the job, as does a loss that stays not finite, unless the step is fenced;
      and a host that is lost: it owned units, and no other host has their moments. The job resumes from the last
      checkpoint, on any number of hosts.

  R11 A pass has LENT units lent at most, in the order of its pulls; local answers these in the order of updates. The
      ring has LENT slots for each part of the host, and one more, or one for each unit of others. So a pass that waits
      for another's contribution never holds the slot that the other waits for.
  R12 A host says that step t is covered when no fetch of version t is under way, and begins none afterwards: the owner
      overwrites that version in the next step, or in this one if it is fenced.
  R13 An update of local is done when the version stands at its owner. Else a pull is answered with one that does not.

  R14 A pull of a step that is over is void, and local says so; so is one that local has answered, but that waits to be
      lent, when local is covered. What the owner's memory or the ring has by then may be another version.

  R15 What an owner remembers of a step's tokens (norms of their gradients) is part of its unit's version. It copies that
      to where the others fetch it from, when the step is open there and the version stands, and tells them. They fetch
      it then, before they say that the step is covered, and lend the unit when it is here. So every part reads what
      the steps before have left, also one that is redone when the owner has updated the unit.

Not modelled: evaluations; a host whose number of parts changes from step to step, which would need a new local relay,
between steps.
"""
import os
import sys
from collections import namedtuple

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', 'relay'))

from explore import check, intern
from relay import Relay
from weights import Weights

# config: that of own. n_owned: units of each host, in order; n_parts, n_workers: of each host. local_slots: of a
# worker's inbox; config.slots are those of a host at an owner. ahead: units that a pass pulls before it needs them.
# lag: in walks, how often another move is drawn than one of a slow host.
# coarse: word of updates and of norms, and norms, are not under way for any time, which leaves less to search. norms:
# units that remember norms of gradients. groups: 0, as the ring takes each unit round once in each direction.
Setting = namedtuple('Setting', 'name config visits n_owned n_parts n_workers local_slots ahead steps faults n_faults '
                                'saves late frozen coarse norms lag groups',
                     defaults=(1, 1, 1, (), 0, 0, 0, (), True, (), 1, 0))
# pc: in its program. asked: pulls. answered: (pull, unit, turn), not here yet; here: the same, not used yet. held:
# (unit, turn) in use, of another host. void: pulls that it goes on from without weights.
Pass = namedtuple('Pass', 't share pc asked answered here held void', defaults=(0, 0, (), (), None, ()))

class Worker:
    def __init__(self, slots):
        self.passes = ()
        self.slots = (None,) * (1 + slots)
        self.grant = None


class Host:
    """Both relays, the workers, what is under way to owners, the optimizer thread, the ring of fetched weights."""
    def __init__(self, setting, h):
        c = setting.config
        self.own = Relay(c)
        self.local = Relay(c._replace(parts=setting.n_parts[h], slots=setting.local_slots, optimizer='adama',
                                      commit='eager', deterministic=True,                                # R1
                                      replay=c.replay or c.commit == 'fenced'))
        self.workers = {}
        self.n_seen = 0             # worker numbers are never used again
        self.memory = {}            # (worker, slot) -> tag and whether it is finite: outlives the worker
        self.sent = {x: (None,) * (1 + c.slots) for x in range(len(setting.n_owned))}
        self.grants = {}            # owner -> (t, name)
        self.queue = ()             # (name, worker, slot): folds of local that wait for a slot of the owner
        self.tasks = ()             # own's folds and updates
        self.running = None
        self.held = ()              # R5
        self.pulls = ()             # (worker, t, unit): the worker has no answer yet
        self.due = frozenset()      # updates of local that are not done
        self.stand = frozenset()    # units whose next version stands at the owner
        self.turns = {u: 0 for u in setting.visits}     # how often their weights have changed
        self.ring = ()              # slots, the oldest first
        self.norms = {}             # unit -> (t, value): what the workers of step t find of it, and other hosts fetch
        self.told = {}              # unit of another -> t: its owner has the norms for step t there
        self.finding = ()           # (unit, (t, value)): norms that are being fetched
        self.opening = None         # local has no worker to open this step with
        self.reported = -1
        self.skipped = frozenset()  # steps that own skipped
        self.verdicts = ()          # (t, whether the step counts): fenced
        self.captured = ()


class Hosts(Weights):
    """All hosts with ordered channels between them. move() does one thing that may happen next; see moves()."""
    def __init__(self, setting):
        self.setting = setting
        self.n = len(setting.n_owned)
        self.owner_of = {}
        units = sorted(set(setting.visits))
        first = 0
        for h, n in enumerate(setting.n_owned):
            self.owner_of.update({u: h for u in units[first:first + n]})
            first += n
        self.host_of = [h for h, n in enumerate(setting.n_parts) for _ in range(n)]
        self.first_part = [sum(setting.n_parts[:h]) for h in range(self.n)]
        self.visits_of = [tuple(v for v, u in enumerate(setting.visits) if self.owner_of[u] == h)
                          for h in range(self.n)]
        c = setting.config
        self.base = {(u, s): 0 for u in units for s in range(c.slices)}
        self.sums = {us: () for us in self.base}
        self.weights = {u: (0, 0) for u in units}
        self.current = {u: 0 for u in units}
        self.channels = {(a, b): () for a in range(self.n) for b in range(self.n) if a != b}
        self.skipped = frozenset()
        self.t = -1                 # the coordinator, on host 0: the step it opened last,
        self.reports = ()           # and who is covered in it: (host, whether it skipped)
        self.want_save = False
        self.saves = setting.saves
        self.saved = ()             # (host, version)
        self.faults = setting.n_faults
        self.late = setting.late
        self.bad = ()               # (step, part) of slices that were not finite
        self.again = ()             # (host, worker, t, unit): a pull that comes once more when its step is over
        self.ended = None
        self.todo = []
        self.plans = {}             # of passes
        self.shared = None          # of worlds that were copied: for each host what its own and its local do
        self.hosts = [Host(setting, h) for h in range(self.n)]
        for h in range(self.n):
            for x in range(self.n):
                self.hosts[h].own.feed(('attached', x))
            for _ in range(setting.n_workers[h]):
                self.attach(h)
        self.open_next()
        self.run()

    # ---- messages ---------------------------------------------------------------------------------------------

    def tell(self, a, b, *message):
        if a == b or (self.setting.coarse and message[0] in ('updated', 'norms')):
            self.todo.append(('heard', b, a, message))
        else:
            self.channels = {**self.channels, (a, b): self.channels[a, b] + (message,)}

    def tell_all(self, a, *message):
        for b in range(self.n):
            self.tell(a, b, *message)

    def run(self):
        """Whatever follows within the hosts, without a message under way."""
        while not self.ended:
            if not self.todo:
                for h in range(self.n):
                    self.copy_norms(h)
                    self.find_norms(h)
                    self.report(h)
            if not self.todo:
                break
            what, *x = self.todo.pop(0)
            getattr(self, what)(*x)
        for h in range(self.n):
            self.lend(h)
        self.invariants()

    def heard(self, x, a, message):
        host, what, t = self.hosts[x], message[0], message[1] if len(message) > 1 else None
        own = host.own
        if what in ('loss', 'contribution') and self.is_early(own, message):
            host.held += ((a, message),)                                                                 # R5
        elif what == 'open':
            if not host.local.inbox:
                host.opening = t
            else:
                self.open_local(x, t)
            mine = tuple(self.setting.visits[v] for v in self.visits_of[x])
            self.own(x, 'open', t, mine, tuple(u for u in self.setting.frozen if u in mine), tuple(self.host_of))
            self.end_passes(x, t)
            held, host.held = host.held, ()
            self.todo += [('heard', x, b, m) for b, m in held]
        elif what == 'loss':
            self.own(x, 'loss', a, *message[1:])
        elif what == 'contribution':
            _, t, (v, p, s), k, where = message
            check(where in self.hosts[a].memory, 'a slice is sent from memory that is not there')
            self.own(x, 'contribution', a, t, self.visits_of[x].index(v), p, s, 0, k)
        elif what == 'updated':
            self.stands(x, message[2])
        elif what == 'norms':
            host.told = {**host.told, message[2]: t}
        elif what == 'free':
            self.freed(x, a, message[1], message[2])
        elif what == 'grant':
            host.grants = {**host.grants, a: message[1:]}
            self.send_queue(x)
        elif what == 'covered':
            self.reports += ((a, message[2]),)
            check(t == self.t, 'covered in another step')
            self.all_covered()
        elif what == 'verdict':
            host.verdicts += (message[1:],)
            if not message[2]:
                for u in host.due:
                    self.stands(x, u)
            self.start_task(x)
        elif what == 'save':
            self.own(x, 'save', 'disk')
        elif what == 'saved':
            self.saved += ((a, t),)
            check(len({version for _, version in self.saved}) == 1, 'hosts save different versions')

    def is_early(self, own, message):
        return message[1] > own.t

    # ---- the coordinator --------------------------------------------------------------------------------------

    def open_next(self):
        self.t += 1
        self.reports = ()
        self.tell_all(0, 'open', self.t)

    def report(self, h):
        host = self.hosts[h]
        covered = host.own.covered and self.is_through(host)                                             # R4
        if host.reported < host.own.t and covered and not self.is_fetching(host) and not self.is_finding(host):
            host.reported = host.own.t
            self.tell(h, 0, 'covered', host.own.t, host.own.t in host.skipped if host.own.names else None)

    def is_through(self, host):
        return host.local.t == host.own.t and host.local.covered

    def all_covered(self):
        if len(self.reports) < self.n:
            return
        skips = {skipped for _, skipped in self.reports if skipped is not None}     # None: all that it owns is frozen
        if self.setting.config.commit == 'fenced':
            self.tell_all(0, 'verdict', self.t, True not in skips)                                       # R6
        else:
            check(len(skips) <= 1, 'one host skips the step, another does not')
        if self.want_save:
            self.want_save = False
            self.tell_all(0, 'save')                                                                     # R7
        if self.t + 1 < self.setting.steps:
            self.open_next()

    def ask_save(self):
        self.want_save = True

    # ---- own: owners ------------------------------------------------------------------------------------------

    def own(self, x, *event):
        host = self.hosts[x]
        for what, *y in self.feed(x, 0, event):
            if what == 'refuse':
                self.refused_by_owner(x, event, *y)
            elif what == 'fold':
                u, v, p, s, w, k, first = y
                source_of = next(m[4] for m in self.delivered(x) if m[2] == (self.visits_of[x][v], p, s))
                host.tasks += ((u, 'fold', self.visits_of[x][v], p, s, w, source_of, first),)
            elif what == 'update':
                host.tasks += ((y[0], 'update', host.own.t),)
            elif what == 'free':
                self.tell(x, y[0], 'free', y[1], (self.visits_of[x][y[2]], y[3], y[4]))
            elif what == 'grant':
                self.tell(x, y[0], 'grant', host.own.t, (self.visits_of[x][y[1]], y[2], y[3]))
            elif what == 'skipped':
                host.skipped |= {y[0]}
                self.skipped |= {y[0]}
                if self.setting.config.commit == 'eager':
                    self.ended = 'a loss of step %d is not finite' % y[0]                                # R10
            elif what == 'capture':
                host.captured += ((y[1], y[2]),)
            elif what == 'saved':
                self.tell(x, 0, 'saved', y[1])
            else:
                check(what in ('share', 'covered', 'done'), '%s of an owner' % what)
        self.start_task(x)

    def delivered(self, x):
        """Slices that stand in x's inboxes: the messages as the senders remember them."""
        for h in range(self.n):
            for cell in self.hosts[h].sent[x]:
                if cell:
                    yield cell

    def refused_by_owner(self, x, event, w, why):
        """Only what was overtaken by a step that is over."""
        own = self.hosts[x].own
        if event[0] == 'loss' and (event[2] == own.t and own.covered or event[2] in self.hosts[x].skipped):
            return                              # all that it owns is frozen; or skipped, and the next step may be open
        check(event[0] == 'contribution' and event[2] in self.hosts[x].skipped,
              'refused by an owner: %s: %s' % (event, why))
        name = (self.visits_of[x][event[3]],) + event[4:6]
        self.tell(x, w, 'free', event[7], name)

    def start_task(self, x):
        """The optimizer thread: lowest unit first, then oldest. Updates of a fenced step wait for the verdict."""
        host = self.hosts[x]
        ready = [i for i, task in enumerate(host.tasks) if not self.waits(host, task)]
        if host.running is None and ready:
            i = min(ready, key=lambda i: host.tasks[i][0])
            host.running = host.tasks[i]
            host.tasks = host.tasks[:i] + host.tasks[i + 1:]

    def waits(self, host, task):
        return task[1] == 'update' and self.setting.config.commit == 'fenced' and \
            all(t != task[2] for t, _ in host.verdicts)                                                  # R6

    def finish_task(self, x):
        host = self.hosts[x]
        task, host.running = host.running, None
        u = task[0]
        slices = range(self.setting.config.slices)
        if task[1] == 'update':
            counts = all(ok for t, ok in host.verdicts if t == task[2])
            if not counts:
                self.skipped |= {task[2]}
            for s in slices:
                record = (('decay',) if self.is_summed(u) else ()) + self.sums[u, s]
                check(not counts or record == ('decay',) + self.full(u, 0), 'update of unit %d finds %s' % (u, record))
                if counts:
                    self.base = {**self.base, (u, s): intern((self.base[u, s], task[2], record))}
                self.sums = {**self.sums, (u, s): ()}
            if counts:
                if self.setting.config.replay:
                    self.current = {**self.current, u: 1 - self.current[u]}
                both, new = self.weights[u], self.base[u, 0]
                self.weights = {**self.weights, u: (both[0], new) if self.current[u] else (new, both[1])}
                self.tell_all(x, 'updated', task[2], u)
            return self.own(x, 'updated', u)
        _, _, v, p, s, a, where, first = task
        tag, finite = self.hosts[a].memory.get(where, ((None, None, None), False))
        part = p - self.first_part[a]
        over = host.own.t in host.skipped or host.own.jobs[u, s][2][0] in host.skipped
        check(over or tag[1] == (v, part, s), 'fold of a slice that was overwritten')
        if finite:
            above, old, below = self.split(self.sums[u, s], u, v, 0)
            old = () if first == 'first' and self.is_summed(u) else old
            check((v, p) not in old, 'folded twice')
            check(old or first == 'first', 'a sum is added to before it is begun')
            new = above + old + (('decay',) if first == 'first' and not self.is_summed(u) else ()) + ((v, p),) + below
            if not self.setting.config.deterministic:
                new = tuple(y for y in new if y == 'decay') + tuple(sorted((y for y in new if y != 'decay'),
                                                                           key=self.full(u, 0).index))
            self.sums = {**self.sums, (u, s): new}
        elif not over:
            check(self.setting.config.commit == 'fenced', 'an owner meets a slice that is not finite')
        self.own(x, 'folded', u, s, 'ok' if finite else 'bad')

    # ---- local: a host's own parts -----------------------------------------------------------------------------

    def open_local(self, h, t):
        host = self.hosts[h]
        alive, n = sorted(host.workers), self.setting.n_parts[h]
        host.opening = None
        owners = tuple(alive[p * len(alive) // n] for p in range(n))
        self.local(h, 'open', t, self.setting.visits, self.setting.frozen, owners)

    def local(self, h, *event):
        host = self.hosts[h]
        known = event[0] == 'loss' and event[2] == host.local.t and host.local.loss[event[3]]
        if event[0] == 'pull':
            host.pulls += (event[1:],)
        actions = self.feed(h, 1, event)
        if event[0] == 'loss' and not known and not any(a[0] == 'refuse' for a in actions):
            self.tell_loss(h, event)
        for what, *y in actions:
            if what == 'share':
                worker = host.workers[y[0]]
                worker.passes = tuple(q for q in worker.passes if q.t == y[1]) + (Pass(y[1], y[2]),)
                if len(worker.passes) == 1:
                    worker.grant = None
            elif what == 'answer':
                self.answer(h, *y)
            elif what == 'void':
                self.void(h, *y)
            elif what == 'covered':
                self.end_waiting(h)
            elif what == 'refuse':
                if y[1] == 'not finite':
                    self.forget(h, y[0])
                else:
                    check(event[0] in ('loss', 'contribution') and host.local.is_over(event[2]),
                          'a worker is refused: %s: %s' % (event, y[1]))
                    self.drop(h, y[0], event[2], event)
            elif what == 'fold':
                u, v, p, s, w, k, _ = y
                if not host.memory[w, k][1] and self.setting.config.commit != 'fenced':                  # R8
                    self.todo.append(('local', h, 'folded', u, s, 'bad'))
                else:
                    host.queue += (((v, p + self.first_part[h], s), (w, k), host.local.t),)
            elif what == 'update':
                host.due |= {y[0]}
                self.update(h, y[0])
            elif what == 'free':
                worker = host.workers.get(y[0])
                if worker and worker.slots[y[1]] and worker.slots[y[1]][1] == tuple(y[2:]):
                    worker.slots = worker.slots[:y[1]] + (None,) + worker.slots[y[1] + 1:]
            elif what == 'grant':
                if y[0] in host.workers:
                    host.workers[y[0]].grant = tuple(y[1:])
            elif what == 'torn' or (what == 'skipped' and event[0] != 'loss') or (what == 'skipped' and known):
                c = self.setting.config
                check(what == 'skipped' or not host.local.config.replay or len(self.bad) > len(set(self.bad)),
                      'the job ends, but replay could redo the part')
                check(c.commit != 'fenced' or what != 'torn', 'torn in a fenced step')
                self.ended = 'host %d cannot finish its parts of step %d' % (h, y[0])                    # R10
        self.send_queue(h)

    def tell_loss(self, h, event):
        t, p, _, verdict = event[2:]
        self.tell_all(h, 'loss', t, p + self.first_part[h], 0, verdict)                                  # R3

    def drop(self, h, w, t, event=None):
        worker = self.hosts[h].workers.get(w)
        if worker:
            worker.passes = tuple(q for q in worker.passes if q.t > t)
            cell = worker.slots[event[7]] if event and event[0] == 'contribution' else None
            if cell and cell[1] == event[3:6]:
                worker.slots = worker.slots[:event[7]] + (None,) + worker.slots[event[7] + 1:]

    def send_queue(self, h):
        """Lowest name first; into the reserved slot only what the owner granted."""
        host = self.hosts[h]
        for job in sorted(host.queue, key=lambda j: (-j[0][0],) + j[0][1:]):
            name, where, t = job
            x = self.owner_of[self.setting.visits[name[0]]]
            k = self.find_slot(host, x, t, name)
            if k is not None:
                host.queue = tuple(j for j in host.queue if j != job)
                message = ('contribution', t, name, k, where)
                self.put_sent(host, x, k, ('sent', t, name, k, where))
                self.tell(h, x, *message)
                self.after_send(h, name)

    def put_sent(self, host, x, k, cell):
        host.sent = {**host.sent, x: host.sent[x][:k] + (cell,) + host.sent[x][k + 1:]}

    def find_slot(self, host, x, t, name):
        k = next((k for k, cell in enumerate(host.sent[x]) if k and not cell), None)
        return 0 if k is None and host.grants.get(x) == (t, name) and not host.sent[x][0] else k       # R9

    def after_send(self, h, name):
        pass

    def freed(self, h, x, k, name):
        host = self.hosts[h]
        cell = host.sent[x][k]
        check(cell and cell[2] == name, 'an owner frees a slot that holds something else')
        self.put_sent(host, x, k, None)
        self.fold_done(h, name)                                                                          # R2
        self.send_queue(h)

    def fold_done(self, h, name):
        self.local(h, 'folded', self.setting.visits[name[0]], name[2], 'ok')
