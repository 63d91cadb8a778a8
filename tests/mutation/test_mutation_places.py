"""The mutants of a source are what the operators say, and their names outlast other edits."""

import ast
from itertools import islice

import pytest

from tests.architecture.test_names import ROOT
from tests.mutation.places import mutants_of
from tests.mutation.subjects import SUBJECTS

PATH = "gpuwarden/somewhere.py"


def changes(source: str, operator: str) -> list[str]:
    """The line that each mutant of one operator has in place of the first that differs."""
    return [x.key.after for x in mutants_of(PATH, source) if x.key.operator == operator]


@pytest.mark.parametrize(
    ("operator", "source", "expected"),
    [
        ("compare", "x = a < b", ["x = a <= b"]),
        ("compare", "x = 0 <= a < b", ["x = 0 < a < b", "x = 0 <= a <= b"]),
        ("compare", "x = a == b", ["x = a != b"]),
        ("compare", "x = a in b", ["x = a not in b"]),
        ("compare", "x = a not in b", ["x = a in b"]),
        ("compare", "x = a is b", ["x = a is not b"]),
        ("compare", "x = a is not b", ["x = a is b"]),
        ("boolean", "x = a and b and c", ["x = a or b and c", "x = a and b or c"]),
        ("boolean", "x = a or b", ["x = a and b"]),
        ("negation", "x = not a.b", ["x = (a.b)"]),
        ("negation", "x = -a", ["x = (a)"]),
        ("condition", "if a:\n    b()", ["if False:", "if True:"]),
        ("condition", "while a:\n    b()", ["while False:"]),
        ("condition", "x = a if b else c", ["x = a if False else c", "x = a if True else c"]),
        (
            "condition",
            "x = [a for a in b if a]",
            ["x = [a for a in b if False]", "x = [a for a in b if True]"],
        ),
        (
            "condition",
            "match a:\n    case b if c:\n        d()",
            ["case b if False:", "case b if True:"],
        ),
        ("number", "x = 0", ["x = 1", "x = (-1)"]),
        ("number", "x = 1.5", ["x = 2.5", "x = 0.5"]),
        ("number", "x = 2 * 3**4", ["x = ((2 * 3**4) + 1)", "x = ((2 * 3**4) - 1)"]),
        ("arithmetic", "x = 2 * 3**4", []),
        ("arithmetic", "x = 2 * a", ["x = 2 // a"]),
        ("truth", "x = True", ["x = False"]),
        ("truth", "def f(a=False): ...", ["def f(a=True): ..."]),
        ("string", "x = 'key'", ["x = 'Xkey'"]),
        ("string", "x = b'a b'", ["x = b'Xa b'"]),
        ("string", "x = f'{a}/{b}'", ["x = (\"X\" + f'{a}/{b}')"]),
        ("string", "x = {'key': 1}", ["x = {'Xkey': 1}"]),
        ("arithmetic", "x = a - b", ["x = a + b"]),
        ("arithmetic", "x //= 2", ["x *= 2"]),
        ("arithmetic", "def f():\n    return a | b", ["return a & b"]),
        ("return", "def f():\n    return a", ["return None"]),
        ("return", "def f():\n    return a < b", ["return not (a < b)"]),
        ("delete", "f(a)", ["pass"]),
        ("delete", "await f(a)", ["pass"]),
        ("delete", "raise A", ["pass"]),
        ("delete", "a.b = 1", ["pass"]),
        ("delete", "a[0]: int = 1", ["pass"]),
        ("delete", "a += 1", ["pass"]),
        ("delete", "del a[0]", ["pass"]),
        ("except", "try:\n    a()\nexcept B:\n    c()", ["except ():"]),
        (
            "except",
            "try:\n    a()\nexcept (B, C):\n    d()",
            ["except ((), C):", "except (B, ()):"],
        ),
        ("raise", "raise A('text') from None", ["raise ArithmeticError('text') from None"]),
        ("slice", "x = a[b:c]", ["x = a[:c]", "x = a[b:]"]),
    ],
)
def test_what_an_operator_changes(operator: str, source: str, expected: list[str]) -> None:
    assert changes(source, operator) == expected


@pytest.mark.parametrize(
    "source",
    [
        '"""A docstring"""',
        'def f() -> None:\n    """Short."""',
        "x: Literal['a'] | Literal['b']",
        "A = list[int] | None",
        "def f(a: Literal['a']) -> Literal['b']: ...",
        "@dataclass(frozen=True)\nclass A: ...",
        "__all__ = ['f']",
        "import a as b",
        "if TYPE_CHECKING:\n    x = 1",
        "T = TypeVar('T')",
        "x = cast('A', b)",
        "x = zip(a, b, strict=True)",
        "x = threading.Thread(target=f, name='short')",
        "x = 'a text for people'",
        "x = f'{a} for people'",
    ],
)
def test_what_no_operator_changes(source: str) -> None:
    assert [x.key for x in mutants_of(PATH, source)] == []


def test_the_text_of_an_error_is_not_changed() -> None:
    assert changes("raise A('short')", "string") == []


def test_only_the_change_differs() -> None:
    source = "# café\ndef f(a):\n    return 'é', a < 2\n"
    [mutant] = [x for x in mutants_of(PATH, source) if x.key.operator == "compare"]
    assert mutant.text == source.replace("<", "<=")


def test_a_mutant_says_where_it_is() -> None:
    source = (
        "class A:\n"
        "    @property\n"
        "    def b(self):\n"
        "        def c():\n"
        "            return (\n"
        "                d\n"
        "            )\n"
        "        return c\n"
    )
    first = next(mutants_of(PATH, source))
    assert (first.key.function, first.first_line, first.last_line) == ("A.b.c", 5, 7)
    assert (first.outermost, first.outermost_line) == ("A.b", 2)


def test_a_default_belongs_to_the_import() -> None:
    [mutant] = mutants_of(PATH, "def f(a=True):\n    b = a\n")
    assert (mutant.key.function, mutant.outermost) == ("f", None)


def test_a_name_outlasts_edits_elsewhere() -> None:
    source = "def f(a):\n    return a < 2\n"
    edited = f'"""New."""\n\ndef g(a):\n    return a < 2\n\n\n{source}'.replace("    r", "\tr")
    before = [x.key for x in mutants_of(PATH, source)]
    assert [x.key for x in mutants_of(PATH, edited) if x.key.function == "f"] == before


def test_every_mutant_is_a_program_and_another_one() -> None:
    tried = 0
    for subject in SUBJECTS:
        for path in subject.sources(ROOT):
            source = (ROOT / path).read_text()
            whole = ast.dump(ast.parse(source))
            for mutant in islice(mutants_of(path, source), 0, None, 40):
                tried += 1
                assert ast.dump(ast.parse(mutant.text)) != whole, mutant.key
    assert tried > 100
