"""The core's table of fences against what fences mean, in any order of events.

The model knows what has happened on an imagined GPU, and nothing of queues and rounds.
"""

from dataclasses import dataclass, field

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from bigmem import _core

PAGE = 4096
MOST_GUARDS = 16
LIVE_QUESTIONS = 2


@dataclass
class Block:
    begin: int
    size: int
    fences: list[int] = field(default_factory=list)
    had_fences: bool = False
    released: int | None = None  # when
    held: bool = False
    gone: bool = False


class FenceTables(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.table = _core.FenceTable()
        self.clock = 0
        self.blocks: dict[int, Block] = {}
        self.edge = PAGE
        self.fences = 0
        self.done: set[int] = set()
        self.open: set[int] = set()
        self.guards: dict[int, int] = {}  # when each was asked for
        # The round under way: questions answered with "not yet" that it may still ask about.
        self.asking = False
        self.alone: Block | None = None
        self.left = 0

    def tick(self) -> int:
        self.clock += 1
        return self.clock

    def new_fence(self) -> int:
        self.fences += 1
        self.open.add(self.fences)
        return self.fences

    def is_due(self, block: Block) -> bool:
        if block.released is None:
            return False
        if block.had_fences:
            return self.done.issuperset(block.fences)
        return any(
            fence in self.done and made > block.released for fence, made in self.guards.items()
        )

    def collect(self) -> None:
        while (fence := self.table.take_dropped()) is not None:
            self.open.remove(fence)
            thinned = fence in self.guards and self.open_guards() >= MOST_GUARDS // 2
            assert fence in self.done or thinned
        while (begin := self.table.take_free()) is not None:
            block = self.blocks.pop(begin)
            assert not block.held
            assert self.is_due(block)
            block.gone = True

    def open_guards(self) -> int:
        return len(self.open & self.guards.keys())

    def choose(self, data: st.DataObject, blocks: list[Block]) -> Block:
        return blocks[data.draw(st.integers(0, len(blocks) - 1))]

    def live(self) -> list[Block]:
        return [b for b in self.blocks.values() if b.released is None]

    @rule(pages=st.integers(1, 3), gap=st.integers(0, 1))
    def enter(self, pages: int, gap: int) -> None:
        begin = self.edge + gap * PAGE
        self.edge = begin + pages * PAGE
        self.table.enter(begin, pages * PAGE)
        self.blocks[begin] = Block(begin, pages * PAGE)

    @rule(page=st.integers(0, 60), offset=st.sampled_from([0, 1, PAGE - 1]))
    def attach(self, page: int, offset: int) -> None:
        address = page * PAGE + offset
        inside = [b for b in self.live() if b.begin <= address < b.begin + b.size]
        fence = self.new_fence()
        assert self.table.attach(address, fence) == bool(inside)
        if not inside:
            self.open.remove(fence)
            return
        inside[0].fences.append(fence)
        inside[0].had_fences = True

    @precondition(lambda self: self.live())
    @rule(data=st.data(), held=st.booleans())
    def release(self, data: st.DataObject, held: bool) -> None:
        block = self.choose(data, self.live())
        self.table.release(block.begin, held)
        block.released = self.tick()
        block.held = held

    @precondition(lambda self: any(b.held for b in self.blocks.values()))
    @rule(data=st.data())
    def unhold(self, data: st.DataObject) -> None:
        block = self.choose(data, [b for b in self.blocks.values() if b.held])
        block.held = False
        if self.table.unhold(block.begin):
            assert self.is_due(block)
            del self.blocks[block.begin]

    @precondition(lambda self: self.open - self.done)
    @rule(data=st.data(), several=st.integers(1, 3))
    def finish(self, data: st.DataObject, several: int) -> None:
        running = sorted(self.open - self.done)
        self.done.update(data.draw(st.permutations(running))[:several])

    @precondition(lambda self: not self.asking)
    @rule(blocks=st.sampled_from([0, 1, 2, 64]))
    def begin_round(self, blocks: int) -> None:
        self.table.begin_round(blocks)
        self.asking, self.alone = True, None
        self.left = blocks + 1

    @precondition(lambda self: not self.asking and self.live())
    @rule(data=st.data())
    def begin_round_of_a_live_block(self, data: st.DataObject) -> None:
        block = self.choose(data, self.live())
        assert self.table.begin_round_of(block.begin + block.size - 1)
        self.asking, self.alone = True, block
        self.left = LIVE_QUESTIONS

    @precondition(lambda self: not self.asking)
    @rule()
    def begin_round_of_nothing(self) -> None:
        assert not self.table.begin_round_of(self.edge)

    @precondition(lambda self: self.asking)
    @rule(possible=st.booleans())
    def ask(self, possible: bool) -> None:
        question = self.table.next()
        if question is None:
            self.asking = False
        elif question == "guard":
            assert self.alone is None
            assert any(b.released and not b.had_fences for b in self.blocks.values())
            # Whatever is released between question and answer is not covered.
            fence = self.new_fence() if possible else 0
            if fence:
                self.guards[fence] = self.tick()
            self.table.answer_guard(fence)
        else:
            self.ask_about(question)
        self.collect()

    def ask_about(self, fence: int) -> None:
        assert fence in self.open
        if self.alone:
            assert fence in self.alone.fences
        if self.alone or fence not in self.done:
            self.left -= 1
            assert self.left >= 0
        self.table.answer(fence in self.done)

    @precondition(lambda self: self.asking)
    @rule(data=st.data())
    def release_while_a_guard_is_made(self, data: st.DataObject) -> None:
        question = self.table.next()
        if question is None:
            self.asking = False
        elif question == "guard":
            fence = self.new_fence()
            self.guards[fence] = self.tick()
            if self.live():
                self.release(data, False)
            self.table.answer_guard(fence)
        else:
            if self.live() and self.alone is None:
                self.release(data, False)
            self.ask_about(question)
        self.collect()

    @precondition(lambda self: not self.asking)
    @rule()
    def everything_gets_done(self) -> None:
        for _ in range(2):
            self.done.update(self.open)
            self.table.begin_round(1 << 30)
            while (question := self.table.next()) is not None:
                if question == "guard":
                    guard = self.new_fence()
                    self.guards[guard] = self.tick()
                    self.done.add(guard)
                    self.table.answer_guard(guard)
                else:
                    self.table.answer(question in self.done)
                self.collect()
            self.collect()
        assert self.table.waiting() == 0
        assert all(b.released is None or b.held for b in self.blocks.values())
        assert self.open <= {fence for b in self.live() for fence in b.fences}

    @precondition(lambda self: not self.asking)
    @rule()
    def fork(self) -> None:
        self.table.forsake()
        free = set()
        while (begin := self.table.take_free()) is not None:
            free.add(begin)
        released = {b.begin for b in self.blocks.values() if b.released and not b.held}
        assert free == released
        assert self.table.waiting() == 0
        self.table.clear()
        assert self.table.take_dropped() is None
        assert not any(self.table.attach(b.begin, 1) for b in self.blocks.values())
        self.blocks.clear()
        self.open.clear()
        self.guards.clear()

    @invariant()
    def guards_do_not_pile_up(self) -> None:
        assert self.open_guards() <= MOST_GUARDS

    @invariant()
    def what_waits_is_released(self) -> None:
        released = [b for b in self.blocks.values() if b.released]
        assert self.table.waiting() <= len(released)
        assert self.table.waiting() >= sum(not b.held and not self.is_due(b) for b in released)


def test_a_block_is_free_when_its_fences_are_done_and_not_before() -> None:
    run_state_machine_as_test(
        FenceTables, settings=settings(max_examples=150, stateful_step_count=80, deadline=None)
    )


def test_one_guard_does_for_all_that_was_released_before_it() -> None:
    table = _core.FenceTable()
    for begin in range(PAGE, 101 * PAGE, PAGE):
        table.enter(begin, PAGE)
        table.release(begin, False)
    table.begin_round(64)
    assert table.next() == "guard"
    table.answer_guard(7)
    assert table.next() == 7
    table.answer(True)
    assert table.next() is None
    assert table.take_dropped() == 7
    assert sum(table.take_free() is not None for _ in range(200)) == 100


def test_many_guards_are_thinned_out_and_cover_what_they_did() -> None:
    """Whatever is released while one long kernel runs, a guard a release."""
    table = _core.FenceTable()
    dropped = []
    for number in range(1, 101):
        table.enter(number * PAGE, PAGE)
        table.release(number * PAGE, False)
        table.begin_round(64)
        assert table.next() == "guard"
        table.answer_guard(number)
        while (fence := table.take_dropped()) is not None:
            dropped.append(fence)
        assert table.next() is not None
        table.answer(False)
        assert table.next() is None
    assert 100 - MOST_GUARDS <= len(dropped) < 100
    assert 100 not in dropped
    for _ in range(100 - len(dropped)):
        table.begin_round(64)
        assert table.next() not in (None, "guard")
        table.answer(True)
    freed = []
    while (begin := table.take_free()) is not None:
        freed.append(begin // PAGE)
    assert freed == list(range(1, 101))


def test_fences_of_a_block_that_is_used_over_and_over_do_not_pile_up() -> None:
    table = _core.FenceTable()
    table.enter(PAGE, PAGE)
    open_fences: list[int] = []
    for number in range(1, 1000):
        assert table.begin_round_of(PAGE)
        while (fence := table.next()) is not None:
            table.answer(fence <= number - 5)  # five are under way at any time
            while (dropped := table.take_dropped()) is not None:
                open_fences.remove(dropped)
        assert table.attach(PAGE, number)
        open_fences.append(number)
        assert len(open_fences) <= 6
