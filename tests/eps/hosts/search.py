#!/usr/bin/env python3
"""search.py [--quick | --mutants | --walks N] - searches rules.py: several hosts, each of unmodified relays.

Without an option: every order of the small settings, then 500 random walks of each kind in larger ones, with workers and
hosts lost, numbers that are not finite, pulls that come late, saves; some 10 minutes on two cores. --quick: the settings
that take seconds, and 30 walks of each kind. --walks N: N walks alone. --mutants breaks one rule at a time and shows that
the search notices.
Exit status 1 if anything is found, or missed.
"""
import random
import sys
import time
from multiprocessing import Pool

import rules
from rules import Setting
from weights import LENT
from world import World

import mutants
from explore import Violation, explore
from relay import Config


def tally(world, _):
    """Whether at an end the job had ended, a step was skipped, a save was made."""
    return world.ended is not None, bool(world.skipped), bool(world.saved)


def walk(setting, seed, world_class=World):
    """One random order; one host's channels and fetches may lag. Returns (moves, world)."""
    rng = random.Random(seed)
    world = world_class(setting)
    slow, n = rng.randrange(len(setting.n_owned) + 2), 0
    while True:
        go, may = world.moves()
        if not go:
            world.final()
            return n, world
        m = rng.choice(may) if may and rng.random() < (0.1 if setting.ahead > 1 else 0.01) else rng.choice(go)
        for _ in range(setting.lag):
            if m[0] == 'deliver' and slow in m[1:] or m[:2] in (('fetched', slow), ('found', slow)):
                m = rng.choice(go)
        world.move(m)
        n += 1


def settings():
    """Small ones, searched exhaustively: 2 and 3 hosts."""
    out, each = [], ((0, 1), (1, 1), (1, 1), (1, 1))      # visits; units, parts, workers of each host
    for optimizer, det in (('adama', False), ('adama', True), ('adamw', False), ('adamw', True)):
        c = Config(2, 1, 1, 1, optimizer, 'eager', det, True)
        tag = '2 hosts, %s%s' % (optimizer, ' det' if det else '')
        out.append(Setting(tag, c, *each))
        out.append(Setting(tag + ', bad numbers', c, *each, faults=('badloss', 'bad'), n_faults=1, late=1))
        out.append(Setting(tag + ', 2 workers, one lost', c, (0, 1), (1, 1), (2, 0), (2, 1), faults=('kill',),
                           n_faults=1))
    c, ahead = Config(2, 1, 1, 1), ((0, 1, 2), (1, 2), (1, 1), (1, 1))
    fenced = Config(2, 1, 1, 1, 'adamw', 'fenced', False, False)
    out.append(Setting('2 hosts, 2 steps', c, *each, steps=2))
    out.append(Setting('2 hosts, 2 steps, save', c, *each, steps=2, saves=1))
    out.append(Setting('2 hosts, tied', c, (0, 1, 0), *each[1:]))
    out.append(Setting('2 hosts, frozen', c, *each, steps=2, frozen=(1,)))
    out.append(Setting('2 hosts, a worker lost', c, *each, late=1, faults=('kill',), n_faults=1))
    out.append(Setting('2 hosts, one lost', c, *each, faults=('dead',), n_faults=1))
    out.append(Setting('2 hosts, no replay, a worker lost', c._replace(replay=False), *each, late=1, faults=('kill',),
                       n_faults=1))
    out.append(Setting('2 hosts, 2 parts on one', c._replace(optimizer='adamw'), (0, 1), (2, 0), (2, 0), (2, 1)))
    out.append(Setting('2 hosts, words under way', c, *each, steps=2, coarse=False))
    out.append(Setting('2 hosts, a pull again', c, *each, steps=1, faults=('again',), n_faults=1))
    out.append(Setting('2 hosts, frozen below, a pull again', fenced, *each, frozen=(0,), faults=('again',),
                       n_faults=1))
    out.append(Setting('2 hosts, pulls ahead', c, *ahead, ahead=2, steps=2, coarse=False))
    out.append(Setting('2 hosts, pulls ahead, a worker lost', c, (0, 1, 2), (2, 1), (1, 1), (1, 1), ahead=2, late=1,
                       faults=('kill',), n_faults=1))
    out.append(Setting('2 hosts, pulls ahead, fenced', fenced, *ahead, ahead=2, steps=2, coarse=False))
    out.append(Setting('2 hosts, pulls ahead, bad losses', fenced, *ahead, ahead=2, faults=('badloss',), n_faults=1))
    out.append(Setting('2 hosts, fenced, bad numbers', fenced, *each, faults=('bad', 'badloss'), n_faults=1))
    out.append(Setting('3 hosts, fenced, bad losses', fenced, (0, 1, 2), (1, 1, 1), (0, 1, 1), (1, 1, 1), steps=2,
                       faults=('badloss',), n_faults=2))
    out.append(Setting('3 hosts, a part on one', Config(1, 1, 1, 1), (0, 1, 2), (1, 1, 1), (0, 1, 0), (1, 1, 1),
                       steps=2))
    out.append(Setting('2 hosts, norms', c, *each, steps=2, coarse=False, norms=(0, 1)))
    out.append(Setting('2 hosts, norms, a worker lost', c, *each, steps=2, late=1, faults=('kill',), n_faults=1,
                       norms=(0, 1)))
    out.append(Setting('2 hosts, norms, fenced, bad losses', fenced, *each, steps=2, faults=('badloss',), n_faults=1,
                       norms=(0, 1)))
    out.append(Setting('3 hosts, norms, a part on one', Config(1, 1, 1, 1), (0, 1, 2), (1, 1, 1), (0, 1, 0), (1, 1, 1),
                       steps=2, norms=(0, 2)))
    out.append(Setting('3 hosts, 2 parts', c._replace(deterministic=True), (0, 1, 2), (1, 1, 1), (1, 0, 1), (1, 1, 1)))
    return out


# Those that take seconds.
QUICK = ('2 hosts, adama', '2 hosts, adama, bad numbers', '2 hosts, adamw det, 2 workers, one lost', '2 hosts, 2 steps',
         '2 hosts, 2 parts on one', '2 hosts, words under way', '2 hosts, a pull again',
         '2 hosts, frozen below, a pull again')


def few_slots(seed):
    """For walks: fewer slots of the ring than units that pass through it."""
    c, fault = Config(2, 1, 1, 1, 'adamw', 'fenced', False, False), 'kill' if seed % 2 else 'badloss'
    return Setting('few slots', c, (0, 1, 2, 3, 4), (1, 4), (1, 1), (1, 1), ahead=2, steps=2, faults=(fault,),
                   n_faults=1, late=1, coarse=False)


def idle_owners(seed):
    """For walks: hosts without parts, which wait for nothing in a step."""
    n_parts = (1, 0, 0) if seed % 2 else (0, 1, 0)
    return Setting('idle owners', Config(1, 1, 1, 1), (0, 1, 2), (1, 1, 1), n_parts, (1, 1, 1), steps=3, coarse=False,
                   norms=(0, 1, 2), lag=30)


def big(seed):
    """A larger setting for a random walk."""
    rng = random.Random(seed)
    n = rng.randint(2, 4)
    n_owned = [rng.randint(1, 2) for _ in range(n)]
    visits = tuple(range(sum(n_owned))) + ((0,) if rng.random() < 0.4 else ())
    n_parts = [rng.randint(0 if h else 1, 2) for h in range(n)]
    parts, fenced = sum(n_parts), rng.random() < 0.3
    c = Config(parts, rng.randint(1, 2), rng.randint(1, 2), rng.randint(1, 2),
               'adamw' if fenced and parts > 1 else rng.choice(('adama', 'adamw')), 'fenced' if fenced else 'eager',
               rng.random() < 0.5, not fenced and rng.random() < 0.8)
    return Setting('walk %d' % seed, c, visits, tuple(n_owned), tuple(n_parts),
                   tuple(rng.randint(1, 3) for _ in range(n)), rng.randint(1, 2), rng.randint(0, 2), rng.randint(2, 3),
                   ('kill', 'kill', 'bad', 'badloss', 'dead', 'again'), rng.choice((0, 1, 1, 2)), rng.randint(0, 1), 1,
                   tuple(u for u in (0, 1) if rng.random() < 0.2), False)


def remembering(seed):
    """The same, with norms of some units."""
    setting, rng = big(seed), random.Random(seed)
    return setting._replace(norms=tuple(u for u in sorted(set(setting.visits)) if rng.random() < 0.7))


# ---- mutants: one rule broken in each -------------------------------------------------------------------------------

class AnyPart(World):
    """R1: local sends a slice's parts in any order"""
    def __init__(self, *x):
        init = rules.Host.__init__

        def loose(host, setting, h):
            init(host, setting, h)
            host.local.config = host.local.config._replace(deterministic=False)
        rules.Host.__init__ = loose
        try:
            super().__init__(*x)
        finally:
            rules.Host.__init__ = init


class FreeWhenSent(World):
    """R2: a slice's memory is free when it was sent"""
    def after_send(self, h, name):
        self.fold_done(h, name)

    def fold_done(self, h, name):
        if (self.setting.visits[name[0]], name[2]) in self.hosts[h].local.jobs:
            super().fold_done(h, name)


class LossAtHome(World):
    """R3: only owners with parts of their own hear of a loss"""
    def tell_loss(self, h, event):
        for x in range(self.n):
            if self.setting.n_parts[x] or x == h:
                self.tell(h, x, 'loss', event[2], event[3] + self.first_part[h], 0, event[5])


class OpenEarly(World):
    """R4: the next step opens when the owners are covered, whatever their workers do"""
    def is_through(self, host):
        return True


class NoHold(World):
    """R5: what comes too early is fed at once"""
    def is_early(self, own, message):
        return False


class FenceAlone(World):
    """R6: an owner updates when its own units are folded"""
    def waits(self, host, task):
        return False


class SaveAtOnce(World):
    """R7: a save goes out when it is asked for"""
    def ask_save(self):
        self.tell_all(0, 'save')


class CheckNothing(World):
    """R8: a slice is sent unchecked"""
    def local(self, h, *event):
        host = self.hosts[h]
        kept = dict(host.memory)
        host.memory = {where: (tag, True) for where, (tag, _) in kept.items()}
        super().local(h, *event)
        host.memory = kept


class OldGrant(World):
    """R9: a grant holds for its name in any step"""
    def find_slot(self, host, x, t, name):
        k = super().find_slot(host, x, t, name)
        return 0 if k is None and host.grants.get(x, (0, 0))[1] == name and not host.sent[x][0] else k


class ForeignReserved(World):
    """a host puts any slice into its reserved slot"""
    def find_slot(self, host, x, t, name):
        return next((k for k, cell in enumerate(host.sent[x]) if not cell), None)


class NoReserved(World):
    """a host ignores an owner's grant"""
    def find_slot(self, host, x, t, name):
        return next((k for k, cell in enumerate(host.sent[x]) if k and not cell), None)


class Overtakes(World):
    """a host's last message to an owner arrives before the others"""
    def move(self, m):
        if m[0] == 'deliver':
            self.channels[m[1:]] = self.channels[m[1:]][-1:] + self.channels[m[1:]][:-1]
        super().move(m)


class AsAnswered(World):
    """R11: units are lent in the order in which local answers"""
    def next_due(self, h, q):
        return q.answered[0] if q.answered and len(self.lent(h, q)) < LENT else None


class OneSlot(World):
    """R11: the ring has one slot"""
    def ring_size(self, h):
        return 1


class CoveredTooSoon(World):
    """R12: a host is covered while it fetches"""
    def is_fetching(self, host):
        return False


class FetchTooLate(World):
    """R12: a host that is covered begins a fetch"""
    def may_fetch(self, host, u, turn):
        return True


class PullTooSoon(World):
    """R13: an update of local is done at once"""
    def has_come(self, host, u):
        return True


class LateAnswer(World):
    """R14: local answers a pull of a step that is over with what there is"""
    def __init__(self, *x):
        super().__init__(*x)
        for host in self.hosts:
            host.local.__class__ = mutants.LateAnswer


class AnyWeights(World):
    """R14: a pull that waits to be lent when its step ends is answered with what is in the first slot"""
    def end_waiting(self, h):
        host = self.hosts[h]
        for w, worker in sorted(host.workers.items()):
            for q in worker.passes:
                for found in q.answered:
                    q = self.give(h, w, q, found, host.ring[0].value if host.ring else None)


class LeftWaiting(World):
    """R14: a pull that waits to be lent when its step ends goes on waiting"""
    def end_waiting(self, h):
        pass


class NormsTooSoon(World):
    """R15: an owner copies norms when the step opens, though the unit is not updated yet"""
    def stands_here(self, host, u):
        return True


class NormsUntold(World):
    """R15: norms are fetched when the step opens, without a word of their owner"""
    def may_find(self, host, u):
        return host.reported < host.own.t and u in self.hosts[self.owner_of[u]].norms


class NormsTooLate(World):
    """R15: a host that is covered begins to fetch norms"""
    def may_find(self, host, u):
        return host.told.get(u) == host.own.t


class CoveredBesideNorms(World):
    """R15: a host is covered while it fetches norms"""
    def is_finding(self, host):
        return False


class NormsLeft(World):
    """R15: a unit is lent with the norms that are there"""
    def has_norms(self, host, u, t):
        return True


WALKS = (few_slots, idle_owners, remembering, big)  # the last one's ends are told

# The walk that finds each, which is tried first.
MUTANTS = {AnyPart: (big, 0), FreeWhenSent: (big, 0), LossAtHome: (big, 4), OpenEarly: (big, 1), NoHold: (big, 13),
           FenceAlone: (big, 10), SaveAtOnce: (big, 14), CheckNothing: (big, 52), OldGrant: (big, 75),
           ForeignReserved: (big, 0), NoReserved: (big, 46), Overtakes: (big, 2), AsAnswered: (big, 6),
           OneSlot: (big, 26), CoveredTooSoon: (few_slots, 121), FetchTooLate: (big, 10), PullTooSoon: (big, 2),
           LateAnswer: (big, 7), AnyWeights: (few_slots, 2), LeftWaiting: (few_slots, 2),
           NormsTooSoon: (remembering, 0), NormsUntold: (remembering, 0), NormsTooLate: (idle_owners, 208),
           CoveredBesideNorms: (idle_owners, 13), NormsLeft: (remembering, 0)}


def run_mutant(mutant):
    """Where it is found: (mutant, walk, what was wrong)."""
    for make, seed in [MUTANTS[mutant], *((make, seed) for seed in range(3000) for make in WALKS)]:
        try:
            walk(make(seed), seed, mutant)
        except Violation as v:
            return mutant, seed, str(v)
        except (AssertionError, IndexError, KeyError, StopIteration, ValueError, AttributeError) as e:
            return mutant, seed, 'crash %r' % e
    return mutant, None, 'SURVIVED'


def run_walks(seeds):
    counts = [0] * 5
    for seed in seeds:
        try:
            for make in WALKS:
                n, world = walk(make(seed), seed)
        except Violation as v:
            return counts, 'seed %d: %s' % (seed, v)
        these = 1, n, world.ended is not None, bool(world.skipped), bool(world.saved)
        counts = [a + b for a, b in zip(counts, these)]
    return counts, None


def run_setting(setting):
    t0 = time.time()
    try:
        return setting.name, explore(World(setting), tally), time.time() - t0, None
    except Violation as v:
        return setting.name, None, time.time() - t0, str(v)


def main():
    options, bad, chosen, n_walks = sys.argv[1:], 0, settings(), 500
    if options[:1] == ['--walks'] and len(options) == 2:
        chosen, n_walks = [], int(options[1])
    elif options == ['--quick']:
        chosen, n_walks = [s for s in chosen if s.name in QUICK], 30
    elif options not in ([], ['--mutants']):
        sys.exit(__doc__)
    with Pool() as pool:
        if options == ['--mutants']:
            for mutant, n, how in pool.imap(run_mutant, MUTANTS):
                bad += n is None
                where = '-' if n is None else n
                print('%-16s %-72s %5s %s' % (mutant.__name__, mutant.__doc__, where, how), flush=True)
            print('%d of %d found' % (len(MUTANTS) - bad, len(MUTANTS)))
            sys.exit(bad > 0)
        if chosen:
            print('%-40s %8s %9s %6s %6s %6s %6s %6s' %
                  ('setting', 'states', 'moves', 'ends', 'ended', 'skip', 'saved', 's'))
        for name, counts, seconds, why in pool.imap(run_setting, chosen):
            bad += why is not None
            print('%-40s FAILED: %s' % (name, why) if why else
                  '%-40s %8d %9d %6d %6d %6d %6d %6.1f' % (name, *counts, seconds), flush=True)
        totals = [0] * 5
        for counts, why in pool.imap(run_walks, [range(i, min(i + 10, n_walks)) for i in range(0, n_walks, 10)]):
            totals = [a + b for a, b in zip(totals, counts)]
            if why:
                bad += 1
                print('FAILED: ' + why, flush=True)
        print('%d walks of %d moves: %d jobs ended, %d with a skipped step, %d saved; %d failed' % (*totals, bad))
    sys.exit(bad > 0)


if __name__ == '__main__':
    main()
