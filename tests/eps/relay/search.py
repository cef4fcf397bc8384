#!/usr/bin/env python3
"""search.py [--quick | --mutants | --walks N | --only NAME] - searches the relay's specification, relay.py.

check_relay.py puts it into a world of workers, an optimizer thread, readers and faults, and checks it at every move.
Without an option: every order of events in small settings, then 10,000 random walks in larger ones; half an hour on two
cores. --quick: the settings that take seconds, each with something that no other has; compare.py walks. --walks: walks
alone. --only: the settings with this in their names. --mutants breaks one rule at a time (mutants.py) and shows that the
search notices.
The exit status is 1 if anything is found, or missed.
"""
import random
import sys
import time
from multiprocessing import Pool

import mutants
from check_relay import World
from explore import Violation, explore
from relay import Config, Relay
from setting import Setting

COUNTS = ('states', 'moves', 'ends', 'torn', 'skip', 'saved', 'wait')      # wait: ends at which a step waits for room


def tally(world, waits):
    """What COUNTS has of an end."""
    return world.torn, bool(world.skipped), world.saved == 1, waits


def walk(setting, seed, relay_class=Relay, trace=False):
    """One random order; faults and requests are rare among the moves. (moves, trace lines, world, whether it waits)"""
    rng = random.Random(seed)
    world = World(setting, relay_class)
    if trace:
        world.start_trace()
    n = 0
    slow = rng.randrange(len(world.workers) + 1)
    while True:
        go, may = world.moves()
        if not go:
            waits = world.final()
            return n, world.trace, world, waits
        if may and rng.random() < 0.02:
            m = rng.choice(may)
        else:
            m = rng.choice(go)
            if m[0] == 'send' and m[1] == slow:                      # one worker lags
                m = rng.choice(go)
        world.move(m)
        n += 1


def settings():
    """The small ones, searched exhaustively, the smallest first: (takes seconds, setting)."""
    S, C = Setting, Config
    every = ('kill', 'stop', 'dup', 'bad', 'badloss')
    U1, U2, U3, tied = (0,), (0, 1), (0, 1, 2), (0, 1, 0)
    small, quick, slow = [], [], []
    for optimizer in ('adama', 'adamw'):
        for det in (False, True):
            c = C(2, 1, 1, 1, optimizer, 'eager', det, True)
            tag = optimizer + (' det' if det else '')
            some = quick if det and optimizer == 'adamw' else slow # the fewest states; walks draw the others, too
            slow += [S(tag + ', every fault', c, U2, faults=every, n_faults=1),
                     S(tag + ', 3 units, save, lost', c, U3, faults=('kill',), n_faults=1, saves=1)]
            some += [S(tag + ', 2 slices, lost', c._replace(slices=2), U2, steps=1, faults=every, n_faults=1),
                     S(tag + ', messages under way', c, U2, steps=1, faults=every + ('resume',), n_faults=1, queue=1,
                       coarse=False)]
            slow += [S(tag + ', tied, every fault', c, tied, faults=every, n_faults=1)]
        c = C(2, 1, 1, 1, optimizer, 'eager', True, True)
        slow += [S(optimizer + ' det, tied, late, save, stop', c, tied, late=1, faults=('stop',), n_faults=1, saves=1),
                 S(optimizer + ', no replay', c._replace(replay=False), U2, faults=every, n_faults=1, saves=1),
                 S(optimizer + ', one worker, woken', c, U2, workers=1, late=1, faults=every, n_faults=2),
                 S(optimizer + ', frozen unit', c, U3, frozen=(1,), faults=('kill', 'stop'), n_faults=1, saves=1),
                 S(optimizer + ', frozen in turn', c, U2, frozen=((1,), ()), faults=every, n_faults=1, saves=1),
                 S(optimizer + ', thawed in turn', c, U2, frozen=((), (0,)), steps=3, faults=('kill',), n_faults=1),
                 S(optimizer + ' det, 3 units, stop', c, U3, faults=('stop',), n_faults=1)]
    c, f = C(2, 1, 1, 1), C(2, 1, 1, 1, 'adamw', 'fenced', groups=True)
    det, bare = c._replace(deterministic=True), c._replace(replay=False)
    slow += [S('adama det, 3 workers, 2 lost', det._replace(parts=3), U2, workers=3, steps=1, faults=('kill',),
               n_faults=2)]
    quick += [S('adamw, 2 accumulators, lost', C(2, 1, 1, 2, 'adamw'), (0, 1, 2, 3), steps=1, faults=('kill',),
                n_faults=1),
              S('fenced, 3 units', f, U3, faults=('kill', 'bad'), n_faults=1)]
    small += [S('adamw, 3 units, 1 accumulator, save', c._replace(optimizer='adamw'), U3, steps=1, saves=1),
              S('adamw, 3 parts, 1 accumulator, save', C(3, 1, 2, 1, 'adamw'), U2, steps=1, saves=1),
              S('adamw, tied, 1 accumulator', C(2, 1, 2, 1, 'adamw'), tied, steps=1, faults=('kill',), n_faults=1),
              S('adama, tied, 1 part', C(1, 1, 2, 1), tied, steps=1, faults=('kill',), n_faults=1)]
    turns = ((0, 1), (1, 0))
    quick += [S('orders, adamw det', C(2, 1, 1, 1, 'adamw', 'eager', True, True), turns, faults=every, n_faults=1),
              S('orders, adama det, save', C(2, 1, 1, 1, 'adama', 'eager', True, True), turns, faults=('kill',), n_faults=1,
                saves=1),
              S('orders, frozen in turn', c._replace(deterministic=True), ((0, 1, 2), (2, 1, 0)), frozen=((1,), ()),
                faults=('kill',), n_faults=1)]
    slow += [S('orders, tied, every fault', c._replace(deterministic=True), ((0, 1, 2, 0), (0, 2, 1, 0)), faults=every,
               n_faults=1),
             S('orders, no replay', c._replace(replay=False, optimizer='adamw'), turns, faults=every, n_faults=1, saves=1),
             S('orders, fenced', f, turns, faults=every, n_faults=1, saves=1)]
    slow += [S('fenced, every fault', f, U2, faults=every, n_faults=1, saves=1),
             S('fenced det, tied, no replay', f._replace(deterministic=True, replay=False), tied, faults=every,
               n_faults=1),
             S('adama, one part, every fault', C(1, 2, 1, 1), U3, workers=1, late=1, faults=every + ('resume',),
               n_faults=2, saves=1)]
    # Parts that go forward and backward one after another.
    fd = f._replace(deterministic=True, replay=False)
    small += [S('row groups', f, U2, workers=1, late=1, faults=('kill', 'bad', 'badloss'), n_faults=1, steps=1, groups=1)]
    quick += [S('row groups, 2 workers', f._replace(parts=3), U1, faults=('kill', 'badloss'), n_faults=1, steps=1,
                groups=1),
              S('row groups, det, tied', fd, tied, faults=('kill', 'bad'), n_faults=1, steps=1, groups=1),
              S('row groups, tied', f, tied, faults=('kill',), n_faults=1, groups=1),
              S('row groups of 2, det, lost', fd._replace(parts=4), U2, faults=('kill',), n_faults=1, steps=1, groups=2)]
    slow += [S('row groups, det, every fault', fd, U2, workers=1, late=1, faults=every, n_faults=1, saves=1, groups=1),
             S('row groups, det, tied, every fault', fd, tied, faults=every, n_faults=1, groups=1),
             S('row groups, det, gaps', fd._replace(parts=4), U2, workers=3, faults=('kill',), n_faults=2, steps=1,
               groups=2)]
    # The same, folded into the moments at once.
    m = C(2, 1, 1, 1, 'adama', 'folded', replay=False, groups=True)
    md = m._replace(deterministic=True)
    small += [S('folded, 1 worker', m, U2, workers=1, late=1, faults=('kill', 'bad', 'badloss'), n_faults=2, steps=1,
                groups=1),
              S('folded, 1 part', m._replace(parts=1), U2, workers=1, late=1, faults=every, n_faults=2)]
    quick += [S('folded, 2 workers', m._replace(parts=3), U1, faults=('kill', 'badloss'), n_faults=1, steps=1, groups=1),
              S('folded, det, tied', md, tied, faults=('kill', 'bad'), n_faults=1, steps=1, groups=1),
              S('folded, save', m, U1, faults=('kill', 'bad', 'badloss'), n_faults=1, saves=1, groups=1),
              S('folded, det, replay', md._replace(replay=True, groups=False), U2, faults=every, n_faults=1, steps=1)]
    slow += [S('folded, every fault', m, U2, faults=every, n_faults=1, saves=1, groups=1),
             S('folded, 2 faults', m, U2, faults=('kill', 'bad', 'badloss'), n_faults=2, steps=1, groups=1),
             S('folded, 2 slices', m._replace(slices=2), U1, faults=every, n_faults=1, groups=1),
             S('folded, tied, every fault', md, tied, faults=every, n_faults=1, groups=1),
             S('folded, messages under way', m, U1, faults=every + ('resume',), n_faults=1, queue=1, coarse=False,
               steps=1, groups=1),
             S('folded, orders', m._replace(groups=False), turns, faults=every, n_faults=1, saves=1),
             S('folded, frozen in turn', m, U2, frozen=((1,), ()), faults=every, n_faults=1, groups=1),
             S('folded, det, gaps', md._replace(parts=4), U2, workers=3, faults=('kill',), n_faults=2, steps=1, groups=2)]
    # Pulls that come late: a second time, or in a step that was skipped meanwhile.
    again = {'faults': ('again', 'stop'), 'n_faults': 1, 'workers': 1, 'late': 1}
    small += [S('a pull again', c._replace(parts=1), U2, **again),
              S('a pull again, no replay', bare._replace(parts=1), U2, **again),
              S('a pull again, frozen below', c._replace(parts=1), U2, frozen=(0,), **again),
              S('a pull again, fenced', f._replace(parts=1, replay=False), U2, **again),
              S('a pull again, lost worker', bare, U1, steps=1, faults=('again', 'kill', 'bad'), n_faults=2),
              S('a pull ahead, no replay', bare, U2, steps=1, faults=('ahead', 'kill'), n_faults=2),
              S('pulls under way, skipped', f, U2, steps=1, faults=('bad', 'badloss'), n_faults=1, queue=1,
                coarse=False)]
    slow += [S('a pull again, 2 workers', c, U2, faults=('again', 'kill', 'badloss'), n_faults=2)]
    more_quick, more_slow = map(sum, zip(room_settings(), audit_settings(), damage_settings()), ([], []))
    return [(True, s) for s in small + more_quick + quick] + [(False, s) for s in slow + more_slow]


def room_settings():
    """Workers have room for few parts, which changes; some are told to leave. (quick, slow)"""
    S, C = Setting, Config
    every = ('kill', 'stop', 'bad', 'badloss', 'leave')
    go, U1, U2, U3, tied = ('kill', 'leave'), (0,), (0, 1), (0, 1, 2), (0, 1, 0)
    c1, c2, f = C(1, 1, 1, 1), C(2, 1, 1, 1), C(2, 1, 1, 1, 'adamw', 'fenced', groups=True)
    two = {'steps': 1, 'n_faults': 1, 'rooms': (1, 1), 'changes': 1}
    quick = [S('rooms, back with less', c1, U1, workers=1, faults=('stop',), n_faults=1, rooms=(1,), later=(0, 1)),
             S('rooms, bad numbers twice', c1, U1, workers=3, faults=('bad', 'kill'), n_faults=3, rooms=(1, 1, 1),
               changes=1),
             S('rooms, 3 parts', C(3, 1, 1, 1), U1, faults=go, **{**two, 'rooms': (2, 2)}),
             S('rooms, 3 workers, 1 part', c1, U2, workers=3, faults=go, n_faults=2, rooms=(1, 1, 0), changes=1),
             S('rooms, messages under way', c2, U1, faults=every + ('resume',), queue=1, coarse=False, later=(1,),
               **two)]
    slow = [S('rooms, save', c2, U2, faults=go, saves=1, **two),
            S('rooms, 1 worker, 1 part', c1, U2, workers=1, late=1, faults=every, n_faults=2, rooms=(1,), later=(1,),
              changes=2),
            S('rooms, 1 worker, 2 parts, then another', c2, U2, workers=1, late=1, faults=go, n_faults=1, rooms=(2,),
              later=(1, 2), changes=1),
            S('rooms, 3 workers, 2 leave', c2._replace(deterministic=True), U1, workers=3, steps=1,
              faults=('kill', 'stop', 'leave'), n_faults=2, rooms=(1, 1, 1), later=(1,), changes=1)]
    for optimizer, det in (('adama', False), ('adama', True), ('adamw', False), ('adamw', True)):
        c = c2._replace(optimizer=optimizer, deterministic=det)
        tag = 'rooms, ' + optimizer + (' det' if det else '')
        some = quick if det and optimizer == 'adamw' else slow
        some += [S(tag + ', 2 slots', c._replace(slots=2), U2, **{**two, 'changes': 3}),
                 S(tag + ', tied', c, tied, faults=('kill',), **{**two, 'rooms': (1, 2)})]
        slow += [S(tag + ', every fault', c, U2, faults=every + ('dup',), later=(1, 2), **two),
                 S(tag + ', one attaches, 2 steps', c, U1, late=1, faults=go, later=(1, 2), **{**two, 'steps': 2}),
                 S(tag + ', no replay', c._replace(replay=False), U2, faults=every, later=(1, 2),
                   **{**two, 'rooms': (1, 2)}),
                 S(tag + ', 3 units, 1 accumulator', c, U3, faults=go, **two)]
    m = f._replace(optimizer='adama', commit='folded', replay=False)
    for tag, c in ('rooms, fenced', f), ('rooms, fenced det, no replay', f._replace(deterministic=True, replay=False)), \
            ('rooms, folded', m):
        slow += [S(tag + ', every fault', c, U2, faults=every, later=(1, 2), **two),
                 S(tag + ', 2 steps', c, U1, late=1, faults=('kill', 'bad', 'leave'), later=(1,),
                   **{**two, 'steps': 2})]
    return quick, slow


def audit_settings():
    """One part of each step is computed twice; workers are wrong. (quick, slow)"""
    S, C = Setting, Config
    every = ('kill', 'stop', 'dup', 'bad', 'badloss', 'lie', 'liar', 'quit')
    U1, U2, tied = (0,), (0, 1), (0, 1, 0)
    c1, c2, f = C(1, 1, 1, 1), C(2, 1, 1, 1), C(2, 1, 1, 1, 'adamw', 'fenced', groups=True)
    det = c2._replace(deterministic=True, optimizer='adamw')
    one, lies = {'steps': 1, 'n_faults': 1, 'audits': True}, ('lie', 'liar')
    two, three = {**one, 'n_faults': 2}, {**one, 'workers': 3}
    quick = [S('audit, 1 worker', c1, U2, workers=1, late=1, faults=every, **one),
             S('audit, 2 workers, 1 part', c1, U2, faults=every, **one),
             S('audit, 2 workers, lie', det, U1, faults=lies + ('kill', 'quit'), **two),
             S('audit, 2 workers, 1 lie', det, U2, faults=('lie',), **one),
             S('audit, 1 worker, 1 lie', c2, U1, workers=1, late=1, faults=('lie',), **one),
             S('audit, 3 workers, liar', det, U1, faults=lies, **three),
             S('audit, 3 workers, 2 steps', c1, U1, faults=lies + ('stop',), **{**three, 'steps': 2}),
             S('audit, stopped', c1, U1, faults=('liar', 'stop'), **{**two, 'steps': 2}),
             S('audit, rash', det, U1, faults=('quit',), **one),
             S('audit, 2 slices, lie', c1._replace(slices=2), U2, faults=lies, **three),
             S('audit, no replay', c1._replace(replay=False), U2, faults=lies + ('kill',), **three),
             S('audit, row groups', f, U1, faults=lies + ('kill',), groups=1, **three),
             S('audit, folded', f._replace(optimizer='adama', commit='folded', replay=False), U1, faults=lies, groups=1,
               **three)]
    slow = [S('audit, 1 worker, 2 faults', c1, U2, workers=1, late=1, faults=every, **two),
            S('audit, 2 workers, 1 part, 2 faults', c1, U2, faults=every, **two),
            S('audit, det, every fault', det, U2, faults=every, **one),
            S('audit, every fault', c2, U2, faults=every, **one),
            S('audit, accumulators', c2._replace(optimizer='adamw'), U2, faults=lies + ('kill', 'quit'), **one),
            S('audit, tied, 2 faults', det, tied, faults=lies + ('kill',), **one),
            S('audit, 3 workers, every fault', c1, U2, faults=every, **{**three, 'n_faults': 2}),
            S('audit, 3 parts, 3 workers', det._replace(parts=3), U1, faults=lies + ('kill',), **three),
            S('audit, 2 steps, save', c2, U1, faults=lies + ('kill',), saves=1, **{**one, 'steps': 2}),
            S('audit, messages under way', c1, U2, faults=every + ('resume',), queue=1, coarse=False, **one),
            S('audit, rooms', c2, U1, faults=lies + ('kill', 'leave'), rooms=(1, 1), later=(1, 2), changes=1, late=1,
              **one),
            S('audit, row groups, every fault', f, U2, faults=every, groups=1, **one)]
    return quick, slow


def damage_settings():
    """Slices change in their slots. (quick, slow)"""
    S, C = Setting, Config
    every = ('damage', 'kill', 'stop', 'dup', 'bad', 'badloss')
    U1, U2, U3, tied = (0,), (0, 1), (0, 1, 2), (0, 1, 0)
    c1, c2, f = C(1, 1, 1, 1), C(2, 1, 1, 1), C(2, 1, 1, 1, 'adamw', 'fenced', groups=True)
    det, one, two = c2._replace(deterministic=True, optimizer='adamw'), {'steps': 1, 'n_faults': 1}, {'steps': 1, 'n_faults': 2}
    m = f._replace(optimizer='adama', commit='folded', replay=False)
    quick = [S('damage, 1 worker', c1, U2, workers=1, late=1, faults=('damage', 'kill'), **two),
             S('damage, 2 workers', det, U2, faults=('damage',), **two),
             S('damage, lost', c1, U2, faults=('damage', 'kill', 'bad'), **two),
             S('damage, 2 slices', c1._replace(slices=2), U2, faults=('damage',), **two),
             S('damage, no replay', c1._replace(replay=False), U2, faults=('damage', 'kill'), **two),
             S('damage, 2 steps, save', c1, U2, workers=1, late=1, faults=('damage',), n_faults=1, saves=1),
             S('damage, under way', c2, U1, steps=1, faults=('damage', 'resume'), n_faults=2, queue=1, coarse=False),
             S('damage, fenced', f, U2, workers=1, late=1, faults=('damage', 'kill'), **two),
             S('damage, row groups', f, U2, faults=('damage', 'kill'), groups=1, **one),
             S('damage, folded', m, U2, workers=1, late=1, faults=('damage', 'kill', 'bad'), groups=1, **two),
             S('damage, room for 1', c2, U2, faults=('damage', 'kill'), rooms=(1, 1), **two),
             S('damage, less room', c2, U2, workers=1, late=1, faults=('damage', 'leave'), rooms=(2,), later=(2,), changes=1,
               **two),
             S('damage, leaving', c2, U1, faults=('damage', 'leave'), rooms=(1, 2), changes=1, **two),
             S('damage, audit', c1, U2, faults=('damage', 'lie', 'quit', 'kill'), audits=True, **one),
             S('damage, 3 audit', c1, U1, workers=3, faults=('damage', 'lie'), audits=True, **two)]
    slow = [S('damage, every fault', c2, U2, faults=every, **two),
            S('damage, det, every fault', det, U2, faults=every, **two),
            S('damage, tied', det, tied, faults=('damage', 'kill'), **two),
            S('damage, accumulators, no replay', det._replace(deterministic=False, replay=False), U3, faults=('damage', 'kill'),
              **one),
            S('damage, fenced, every fault', f, U2, faults=every, groups=1, **two),
            S('damage, folded, every fault', m, U2, faults=every, groups=1, **one),
            S('damage, rooms, every fault', c2, U2, faults=every + ('leave',), rooms=(1, 1), later=(1, 2), changes=1, **one),
            S('damage, audit, every fault', c2, U1, faults=every + ('lie', 'liar', 'quit'), audits=True, **two)]
    return quick, slow


def optimizer_for(commit, parts, rng):
    """Fenced, several parts are summed; folded, they are not."""
    of = {'eager': ('adama', 'adamw'), 'fenced': ('adamw',) if parts > 1 else ('adama', 'adamw'), 'folded': ('adama',)}
    return rng.choice(of[commit])


def big(seed):
    """A larger setting for a random walk; in two of five, workers have room for few parts."""
    rng = random.Random(seed)
    commit = rng.choice(('eager', 'eager', 'fenced', 'folded'))
    units = tuple(range(rng.randint(2, 6)))
    if rng.random() < 0.4:
        units += (0,)
    parts = rng.randint(1, 5)
    c = Config(parts, rng.randint(1, 3), rng.randint(1, 4), rng.randint(1, 3),
               optimizer_for(commit, parts, rng), commit, rng.random() < 0.5, rng.random() < 0.75,
               commit != 'eager' and rng.random() < 0.8)
    frozen = [tuple(u for u in (0, 1) if rng.random() < 0.15) for _ in range(rng.randint(1, 3))]
    frozen = tuple(u if set(units) - set(u) else () for u in frozen) # a step trains something
    inner = [u for u in units[1:-1] if units.count(u) == 1]
    if rng.random() < 0.4 and len(inner) > 1:                # those between the first and the last change places
        first, last = units[0], units[-1]
        units = (units,) + tuple((first, *rng.sample(inner, len(inner)), last) for _ in range(rng.randint(1, 2)))
    n, faults = rng.randint(1, 4), ('kill', 'stop', 'dup', 'bad', 'badloss', 'resume', 'again', 'ahead')
    s = Setting('walk %d' % seed, c, units, frozen, n, rng.randint(0, 2), rng.randint(2, 4), faults, rng.randint(0, 4),
                rng.randint(0, 1), rng.randint(0, 3), False)
    s = s._replace(groups=rng.randint(0, 2) if c.groups else 0)
    if rng.random() < 0.3:
        s = s._replace(audits=True, faults=faults + ('lie', 'lie', 'liar', 'quit'))
    if rng.random() < 0.3:
        s = s._replace(faults=s.faults + ('damage',) * 2)
    if rng.random() < 0.6:
        return s
    return s._replace(faults=s.faults + ('leave',) * 2, rooms=tuple(rng.randint(1, parts) for _ in range(n)),
                      later=tuple(sorted({1, parts, rng.randint(1, parts)})), changes=rng.randint(0, 8))


# Where a mutant is looked for first, if that saves time.
FIRST = {'row groups': (mutants.LateReplay, mutants.LateRefused, mutants.LateForgotten, mutants.LateWaits,
                        mutants.AllLosses, mutants.MarkAlone),
         'adamw, tied, 1 accumulator': (mutants.TiedGreedy,),
         'folded, 1 worker': (mutants.AllLossesFolded, mutants.SkipsFolded, mutants.GivesUp, mutants.GivesLossUp,
                              mutants.NoRedo, mutants.EarlyFolded),
         'row groups, det, tied': (mutants.OneSum, mutants.LateSum, mutants.ByVisit),
         'row groups, det, gaps': (mutants.Beyond,),
         'a pull again': (mutants.LateAnswer, mutants.NoAttempt, mutants.NoNumber, mutants.WrongVersion),
         'a pull again, no replay': (mutants.BlindRedo,),
         'a pull again, fenced': (mutants.EagerFence,),
         'a pull ahead, no replay': (mutants.TornForgotten, mutants.TooVoid),
         'pulls under way, skipped': (mutants.KeepInbox,),
         'adamw, 3 parts, 1 accumulator, save': (mutants.GreedySums,),
         'rooms, 3 parts': (mutants.Recount, mutants.Owned, mutants.Folded, mutants.Idle),
         'rooms, bad numbers twice': (mutants.Roomless, mutants.Unleaving, mutants.Shortsighted, mutants.Forgetful,
                                      mutants.Evicting),
         'adama, tied, 1 part': (mutants.TwoSums,),
         'rooms, adama, tied': (mutants.TiedOnce, mutants.Numbering),
         'rooms, back with less': (mutants.Despairing, mutants.Narrow, mutants.Hasty, mutants.Wide, mutants.Sticky),
         'orders, adamw det': (mutants.Rigid,),
         'rooms, messages under way': (mutants.NoLossFence, mutants.EarlyFree),
         'adamw det, messages under way': (mutants.NoReserve, mutants.AnyOrder),
         'adama det, 3 workers, 2 lost': (mutants.OwnLowest,),
         'audit, 2 workers, lie': (mutants.Unaudited, mutants.Deaf, mutants.Lingering, mutants.Hanging, mutants.Biased,
                                   mutants.Vain, mutants.Waiting, mutants.Stale),
         'audit, 2 workers, 1 lie': (mutants.Resigned, mutants.Lenient),
         'audit, rash': (mutants.Mute,),
         'audit, stopped': (mutants.Credulous, mutants.Timeless),
         'audit, 2 slices, lie': (mutants.Partial,),
         'audit, 3 workers, every fault': (mutants.Hopeful,),
         'audit, 3 workers, 2 steps': (mutants.Remembering,),
         'damage, 1 worker': (mutants.Trusting, mutants.Severe, mutants.Idling, mutants.Meddling),
         'damage, no replay': (mutants.Brazen,),
         'damage, room for 1': (mutants.Crowding,),
         'damage, less room': (mutants.Usurping, mutants.Roomy)}


# ---- runs -----------------------------------------------------------------------------------------------------------

def run_setting(setting):
    t0 = time.time()
    try:
        return setting.name, explore(World(setting), tally), time.time() - t0, None
    except Violation as v:
        return setting.name, None, time.time() - t0, str(v)


def run_walks(seeds):
    """(moves, torn, with a skipped step, saved, waiting for room) of these walks, and what was wrong."""
    counts = [0] * 5
    for seed in seeds:
        try:
            n, _, world, waits = walk(big(seed), seed)
        except Violation as v:
            return counts, 'seed %d: %s' % (seed, v)
        these = n, world.torn, bool(world.skipped), world.saved == 1, waits
        counts = [a + b for a, b in zip(counts, these)]
    return counts, None


def run(chosen, n_walks):
    """Prints a line for each setting. How many failed."""
    t0, failed, total = time.time(), 0, [0] * len(COUNTS)
    with Pool() as pool:
        if chosen:
            print('%-42s' % 'setting' + ' %8s' * len(COUNTS) % COUNTS + '      s')
        for name, counts, seconds, bad in pool.imap(run_setting, chosen):
            failed += bad is not None
            total = [a + b for a, b in zip(total, counts or total)]
            print('%-42s' % name + (' FAILED: ' + bad if bad else ' %8d' * len(COUNTS) % counts + ' %6.1f' % seconds),
                  flush=True)
        print('%d settings: %d states, %d moves, %d ends' % (len(chosen), *total[:3]), flush=True)
        total = [0] * 5
        for counts, bad in pool.imap(run_walks, [range(i, min(i + 50, n_walks)) for i in range(0, n_walks, 50)]):
            total = [a + b for a, b in zip(total, counts)]
            if bad:
                failed += 1
                print('FAILED: ' + bad, flush=True)
    print('%d walks of %d moves: %d torn, %d with a skipped step, %d saved, %d wait for room; %d failed; %.0f s' %
          (n_walks, *total, failed, time.time() - t0))
    return failed


def find_mutant(mutant):
    """(mutant, setting, moves, what was wrong); the setting is None if nothing was."""
    for _, s in sorted(settings(), key=lambda x: mutant not in FIRST.get(x[1].name, ())):
        try:
            explore(World(s, mutant), tally)
        except Violation as v:
            what, path = str(v).split('; after: ')
            return mutant, s.name, path.count(' | ') + 1, what
        except (AssertionError, IndexError, KeyError) as e:
            return mutant, s.name, 0, 'crash %r' % e
    return mutant, None, 0, 'MISSED'


def run_mutants():
    missed = 0
    with Pool() as pool:
        for mutant, where, n, how in pool.imap(find_mutant, mutants.SEEN):
            missed += where is None
            print('%-14s %-72s %-36s %3d moves: %s' % (mutant.__name__, mutant.__doc__, where, n, how), flush=True)
    print('%d of %d found' % (len(mutants.SEEN) - missed, len(mutants.SEEN)))
    return missed


def main():
    options = sys.argv[1:]
    if options == ['--mutants']:
        return run_mutants() > 0
    if options[:1] == ['--walks'] and len(options) == 2:
        return run([], int(options[1])) > 0
    if options[:1] == ['--only'] and len(options) == 2:
        return run([s for _, s in settings() if options[1] in s.name], 0) > 0
    if options == ['--quick']:
        return run([s for quick, s in settings() if quick], 0) > 0
    if options:
        sys.exit(__doc__)
    return run([s for _, s in settings()], 10000) > 0


if __name__ == '__main__':
    sys.exit(main())
