#!/usr/bin/python3
"""Across hosts every collective gives the reference's bits: wherever ranks are, by whichever
algorithm, under whichever budget; and what is refused is refused everywhere alike."""

import itertools
import world

# By rank, its host.
PLACEMENTS = (
    "01",
    "0011",
    "0101",  # not consecutive
    "10",  # host 1 has the lowest rank
    "0001",
    "01111",
    "012",
    "0012",
    "2101",
    "0123",
    "00112233",
    "3210012",
    "0000111122223333",
)
FLOATS = ("f32", "f16", "bf16", "f64", "f8e4m3", "f8e5m2")
INTEGERS = ("i32", "u8", "i64", "u16")
MOVED = ("f32", "packed_u32", "i8", "c128", "bool", "f16", "f64")
FLOAT_OPS = ("sum", "mean", "max", "product", "min")
INTEGER_OPS = ("sum", "xor", "max", "product", "min", "and", "or")
SIZES = ((1009, 1), (45, 3), (1, 1), (0, 1), (5003, 1))  # elements, and those of a row
BUDGETS = ("none", "least", "odd", "medium", "huge")

WHOLE = ("all_reduce", "reduce", "broadcast")
WINDOWED = WHOLE + ("all_gather", "gather", "reduce_scatter", "scatter")

# What fits between nodes whatever the type and operator, and any number of nodes.
ALGORITHMS = {
    "all_reduce": ("direct", "pairwise", "tree"),
    "reduce_scatter": ("direct", "pairwise"),
    "all_gather": ("direct", "pairwise", "ring"),
    "broadcast": ("direct", "tree"),
    "reduce": ("direct", "tree"),
    "gather": ("direct", "tree"),
    "scatter": ("direct", "tree"),
    "all_to_all": ("direct", "pairwise"),
    "all_to_all_v": ("direct", "pairwise"),
}
POWER_OF_TWO = ("all_reduce", "reduce_scatter", "all_gather")  # also halving-doubling
ORDERLESS = ("all_reduce", "reduce_scatter")  # also ring, where the order cannot show


def budget_of(choice, kind, dtype, count, row, nranks):
    """From chunks of one element, where those are not too many, to one chunk."""
    least = world.least_budget(kind, dtype, nranks, row)
    if choice == "none" or (choice == "least" and count > 100):
        return {}
    return {
        "budget": {
            "least": least,
            "odd": least * (count // 97 + 2) + least // 2 + 1,
            "medium": least * (count // 3 + 1) + least - 1,
            "huge": 1 << 40,
        }[choice]
    }


def element_types(kind):
    """Pairs of type and operator; None where nothing is reduced."""
    if kind not in world.REDUCTIONS:
        return [(dtype, None) for dtype in MOVED]
    types = itertools.chain(
        itertools.product(FLOATS, FLOAT_OPS), itertools.product(INTEGERS, INTEGER_OPS)
    )
    return list(types)


def calls(kind, nranks):
    """Every type with every operator; sizes, budgets, roots and forms go round beside them, so that
    each two of them meet sooner or later."""
    for n, (dtype, op) in enumerate(element_types(kind)):
        for k, (count, row) in enumerate(SIZES):
            yield {
                "dtype": dtype, "op": op, "count": count, "row": row, "seed": n + 1,
                "root": (n + k) % nranks, "shift": n % 4, "plain": n % 7 == 0,
                "in_place": kind in world.IN_PLACE and n % 3 == 0,
                "spare": kind not in world.IN_PLACE and n % 3 == 0,
                **budget_of(BUDGETS[(n + k) % 5], kind, dtype, count, row, nranks),
            }  # fmt: skip


class Exact(world.WorldTest):
    @classmethod
    def setUpClass(cls):
        cls.world = world.World(4)
        cls.addClassCleanup(cls.world.close)

    def setUp(self):
        self.watch(self.world)

    def group(self, placement, **join):
        group = self.world.group(placement, **join)
        self.addCleanup(group.close)
        return group

    def test_every_collective_wherever_ranks_are(self):
        for placement in PLACEMENTS:
            group = self.group(placement)
            for kind in world.KINDS:
                with self.subTest(placement=placement, kind=kind):
                    for words in calls(kind, len(group)):
                        narrow = world.may_need_more(kind, words["dtype"], words["op"])
                        (group.exact_or_least if narrow else group.exact)(kind, **words)
            group.ok("barrier")
            group.leave()
            group.close()
        self.world.expect_nothing_left()

    def test_the_root_may_be_where_no_rank_is(self):
        group = self.group("1122", root=0)
        group.exact("all_reduce", count=1009, op="mean")
        group.leave()

    def test_a_group_on_one_host_may_have_its_root_on_another(self):
        group = self.group("1111", root=0)
        group.exact("all_reduce", count=1009, budget=64)
        group.leave()

    def test_equal_blocks_give_the_same_bits_on_one_host_and_on_several(self):
        found = {}
        for placement in ("00000000", "00001111", "00112233"):
            group = self.group(placement)
            for kind in world.REDUCTIONS:
                for dtype, op in element_types(kind):
                    answers = group.exact(kind, dtype=dtype, op=op, count=1000, seed=5, root=3)
                    digests = [answer.digest for answer in answers]
                    self.assertEqual(found.setdefault((kind, dtype, op), digests), digests)
            group.leave()

    def test_every_algorithm_and_budget_gives_the_same_bits(self):
        for placement in ("0011", "012", "00123"):
            nodes = len(set(placement))
            for kind, names in ALGORITHMS.items():
                if kind in POWER_OF_TWO and nodes & (nodes - 1) == 0:
                    names += ("halving-doubling",)
                for name in names:
                    with self.subTest(placement=placement, kind=kind, algorithm=name):
                        self.check_algorithm(placement, kind, name)

    def check_algorithm(self, placement, kind, name):
        group = self.group(placement, algorithm=name)
        for dtype, op in (("f32", "sum"), ("f16", "mean"), ("i32", "product")):
            op = op if kind in world.REDUCTIONS else None
            for choice in BUDGETS:
                for count, row in SIZES:
                    budget = budget_of(choice, kind, dtype, count, row, len(group))
                    answers = group.exact_or_least(
                        kind, dtype=dtype, op=op, count=count, row=row, root=1, **budget
                    )
                    if count > 0:
                        self.assertEqual({answer.algorithm for answer in answers}, {name})
        group.leave()
        group.close()

    def test_a_ring_reduces_where_the_order_cannot_show(self):
        group = self.group("0012", algorithm="ring")
        for kind in ORDERLESS:
            for dtype, op in (("f32", "min"), ("i32", "sum"), ("u8", "xor"), ("f16", "max")):
                answers = group.exact(kind, dtype=dtype, op=op, count=1009, budget=999)
                self.assertEqual({answer.algorithm for answer in answers}, {"ring"})
        refused = group.refused("all_reduce", dtype="f32", op="sum", count=1009)
        self.assertEqual(refused.code, "unsupported-algorithm")
        group.exact("all_reduce", dtype="i64", op="sum", count=1009)
        group.leave()

    def test_large_tensors(self):
        group = self.group("0011")
        for budget in ({}, {"budget": 1 << 20}, {"budget": 99991}):
            answers = group.exact("all_reduce", count=2_000_003, op="sum", **budget)
            self.assertEqual(len({answer.chunks for answer in answers}), 1)
            group.exact("all_to_all", count=300_007, **budget)
            group.exact("broadcast", count=2_000_003, root=3, **budget)
        group.leave()

    def test_plain_memory_passes_through_windows(self):
        """In blocking calls; other ranks may have theirs shared, or not wait."""
        mixtures = itertools.cycle(((3, 3, 3, 3), (3, 0, 3, 1), (0, 3, 0, 3), (1, 0, 0, 3)))
        for placement in ("0011", "0121"):
            group = self.group(placement)
            for kind, budget in itertools.product(WINDOWED, (None, 1 << 19, 99_991)):
                count = 1_000_003 if kind in WHOLE else 250_007  # of 2 MiB and more in all
                words = {"count": count, "dtype": "f32", "root": 2, "shift": 1}
                words |= {"budget": budget} if budget else {}
                self.exact_mixture(group, kind, next(mixtures), words)
            group.leave()

    def exact_mixture(self, group, kind, manners, words):
        with self.subTest(placement=group.placement, kind=kind, manners=manners, words=words):
            for rank, manner in zip(group.ranks, manners):
                how = {"plain": manner & 1, "blocking": manner >> 1}
                rank.tell(group.command(kind, **words | how))
            group.expect_exact(kind, **words)

    def test_calls_in_a_row_stay_in_order(self):
        group = self.group("0101")
        for kind in world.KINDS:
            group.exact(kind, count=1009, times=50)
            group.exact(kind, count=3, times=200)
        group.leave()


class Refused(world.WorldTest):
    """Everywhere alike, with nothing written; and the communicator goes on."""

    @classmethod
    def setUpClass(cls):
        cls.world = world.World(3)
        cls.addClassCleanup(cls.world.close)

    def setUp(self):
        self.watch(self.world)
        self.group = self.world.group("0012")
        self.addCleanup(self.group.close)

    def tearDown(self):
        self.group.exact("all_reduce", count=1009)

    def test_a_budget_that_is_too_small(self):
        for kind in world.KINDS[:-1]:
            least = world.least_budget(kind, "f32", 4)
            refused = self.group.refused(kind, count=9, budget=least - 1)
            self.assertEqual(refused.code, "budget-too-small", kind)
            self.assertIn(f" {least}", refused.text)

    def test_an_operation_that_there_is_not(self):
        self.assertEqual(
            self.group.refused("all_reduce", dtype="packed_u8", op="sum", count=9).code,
            "unsupported-dtype",
        )
        self.assertEqual(
            self.group.refused("reduce", dtype="i32", op="mean", count=9).code, "invalid-operation"
        )

    def disagree(self, commands):
        """Tells each rank its own; returns the error that all get."""
        for rank, (verb, words) in zip(self.group.ranks, commands):
            rank.tell(self.group.command(verb, **words))
        return self.group.expect_alike(str(commands), self.group.answers())

    def test_ranks_that_disagree(self):
        for count in (9, 100_003):  # with the request, and begun before the verdict
            self.disagree_with(count)

    def disagree_with(self, count):
        usual = ("all_reduce", {"count": count, "dtype": "f32"})
        for other in (
            ("all_reduce", {"count": 2 * count, "dtype": "f32"}),
            ("all_reduce", {"count": count, "dtype": "i32"}),
            ("all_reduce", {"count": count, "dtype": "f32", "op": "max"}),
            ("all_reduce", {"count": count, "dtype": "f32", "budget": 4096}),
            ("reduce", {"count": count, "dtype": "f32"}),
            ("all_gather", {"count": count, "dtype": "f32"}),
        ):
            for odd in range(4):
                with self.subTest(count=count, other=other, odd=odd):
                    mismatch = self.disagree([other if r == odd else usual for r in range(4)])
                    self.assertEqual(mismatch.code, "mismatch")
                    self.assertIn(odd, mismatch.ranks)

    def test_what_one_rank_alone_gets_wrong(self):
        usual = ("broadcast", {"count": 9, "root": 1})
        refused = self.disagree([usual, usual, usual, ("broadcast", {"count": 9, "root": 4})])
        self.assertEqual((refused.code, refused.ranks), ("invalid-root", [3]))

    def test_an_algorithm_that_does_not_fit_three_nodes(self):
        group = self.world.group("0012", algorithm="halving-doubling")
        self.addCleanup(group.close)
        self.assertEqual(group.refused("all_reduce", count=9).code, "unsupported-algorithm")
        group.leave()


if __name__ == "__main__":
    world.main()
