"""explore.py - what the searches of the relay and of several hosts share: every order of a world's moves, and its record.

A world says what may happen next (moves), does it (move), tells states apart (key), and judges an end (final).
"""
import gc


class Violation(Exception):
    pass


def check(ok, what):
    if not ok:
        raise Violation(what)


interned = {}


def intern(x):
    return interned.setdefault(x, len(interned))


class Record:
    """What a world knows of a run without faults, as a record of what was folded into a slice in which step. It has a
    setting, and the steps that were skipped."""
    def is_summed(self, u):
        c = self.setting.config
        visits = visits_in(self.setting, 0)
        return c.commit == 'fenced' or visits.count(u) > 1 or (c.optimizer == 'adamw' and c.parts > 1)

    def full(self, u, t):
        """The folds of step t into one slice of u, in fold order."""
        visits = visits_in(self.setting, t)
        return tuple((v, p) for v in reversed(range(len(visits))) if visits[v] == u
                     for p in range(self.setting.config.parts))

    def is_apart(self, u, t):
        return self.setting.config.parts > 1 and visits_in(self.setting, t).count(u) > 1

    def accumulated(self):
        """Units that have an accumulator, if some have."""
        visits = visits_in(self.setting, 0)
        return {u for (u, _), x in self.sums.items() if visits.count(u) == 1 and x
                or self.is_apart(u, 0) and any(y[0] == visits.index(u) for y in x)}

    def split(self, record, u, v, t):
        """The record of a slice in step t: of visits above this one, of the sum where it goes, and of visits below."""
        if not self.is_apart(u, t):
            return (), record, ()
        return (tuple(x for x in record if x[0] > v), tuple(x for x in record if x[0] == v),
                tuple(x for x in record if x[0] < v))

    def expected(self, u, version):
        """The fault-free record of a slice of u at a version."""
        base = 0
        for t in range(version):
            if t not in self.skipped and u not in frozen_in(self.setting, t):
                base = intern((base, t, ('decay',) + self.full(u, t)))
        return base


def frozen_in(setting, step):
    """Units that the step leaves alone: those of the setting, or, of several such tuples, one after the other's."""
    of = setting.frozen
    return of[step % len(of)] if of and isinstance(of[0], tuple) else of


def visits_in(setting, step):
    """Units by visit: those of the setting, or, of several orders of them, one after the other."""
    of = setting.visits
    return of[step % len(of)] if isinstance(of[0], tuple) else of


def show(path):
    moves = []
    while path:
        moves.append(path[0])
        path = path[1]
    return ' | '.join(' '.join(map(str, m)) for m in reversed(moves))


def explore(start, tally, limit=10**9):
    """Breadth first over every order: (states, moves, ends) and the sums of tally(world, what its final() returned) over the
    ends; or a Violation with its path."""
    gc.disable()                    # worlds are in no cycles, and a collection looks at all of them
    seen, level = {start.key()}, [(start, None)]
    n_moves, tallies = 0, []
    while level:
        following = []
        for world, path in level:
            go, may = world.moves()
            if not go:
                try:
                    tallies.append(tally(world, world.final()))
                except Violation as v:
                    raise Violation('%s; after: %s' % (v, show(path)))
            for m in go + may:
                n_moves += 1
                after = world.copy()
                try:
                    after.move(m)
                except Violation as v:
                    raise Violation('%s; after: %s' % (v, show((m, path))))
                key = after.key()
                if key not in seen:
                    seen.add(key)
                    following.append((after, (m, path)))
            if len(seen) > limit:
                raise Violation('more than %d states' % limit)
        level = following
    return len(seen), n_moves, len(tallies), *map(sum, zip(*tallies))
