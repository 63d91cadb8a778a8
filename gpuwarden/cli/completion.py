"""Completion of names that only a controller knows: nodes, classes, GPUs, pods. Pure.

What is added to the generated script asks `gpuwarden LIST -o name`, for two seconds, without a
terminal (so that no plugin of a kubeconfig asks anything) and without a word where it fails. Names
are data: no script evaluates them.
"""

from typing import Final, Literal

Shell = Literal["bash", "zsh", "fish"]

_PODS: Final = "reservations --pods"
ARGUMENTS: Final = {
    "node show": "nodes",
    "node accept": "nodes",
    "node quarantine": "nodes",
    "node release": "nodes",
    "protection check": "nodes",
    "explain node": "nodes",
    "class show": "classes",
    "class diff": "classes",
    "explain pod": _PODS,
    "gpu show": "gpus",
    "reservation release": "gpus",
}
"""Command -> the list that has what its argument names."""
OPTIONS: Final = {
    "node": ("nodes", ("gpus", "reservations")),
    "class": ("classes", ("nodes", "gpus")),
    "pod": (_PODS, ("reservation release",)),
}
"""Option -> the list that has its values, and the commands that know it."""

WHOLE: Final = {"why": _PODS}
"""Likewise, of commands of one word."""

_ASK: Final = "-o name --timeout 2 </dev/null 2>/dev/null"


def names_script(shell: Shell) -> str:
    """What completes names in a shell, after the generated script."""
    return {"bash": _bash, "zsh": _zsh, "fish": _fish}[shell]()


def _cases(indent: str) -> tuple[str, str]:
    options = "".join(f'{indent}--{name}) list="{x}" ;;\n' for name, (x, _) in OPTIONS.items())
    arguments = "".join(f'{indent}"{words} 1") list="{x}" ;;\n' for words, x in ARGUMENTS.items())
    whole = "".join(f'{indent}"{word} "*" 0") list="{x}" ;;\n' for word, x in WHOLE.items())
    return options, f'{arguments}{whole}{indent}"class diff 2") list=classes ;;\n'


def _bash() -> str:
    options, arguments = _cases("    ")
    return f"""
_gpuwarden_names() {{
  local cur="${{COMP_WORDS[COMP_CWORD]}}" list="" name
  case "${{COMP_WORDS[COMP_CWORD-1]}}" in
{options}  esac
  case "${{COMP_WORDS[1]}} ${{COMP_WORDS[2]}} $((COMP_CWORD - 2))" in
{arguments}  esac
  if [[ -z $list || $cur == -* ]]; then
    _gpuwarden
    return
  fi
  COMPREPLY=()
  while IFS= read -r name; do
    [[ $name == "$cur"* ]] && COMPREPLY+=("$(printf %q "$name")")
  done < <("${{COMP_WORDS[0]}}" $list {_ASK})
}}
complete -F _gpuwarden_names gpuwarden
"""


def _zsh() -> str:
    options, arguments = _cases("    ")
    return f"""
_gpuwarden() {{
  local list=""
  local -a names
  case "$words[CURRENT-1]" in
{options}  esac
  case "$words[2] $words[3] $((CURRENT - 3))" in
{arguments}  esac
  if [[ -z $list || $words[CURRENT] == -* ]]; then
    _cyclopts_gpuwarden "$@"
    return
  fi
  names=("${{(@f)$($words[1] ${{=list}} {_ASK})}}")
  compadd -a names
}}
if [[ $funcstack[1] == _gpuwarden ]]; then
  _gpuwarden "$@"
else
  compdef _gpuwarden gpuwarden
fi
"""


def _fish() -> str:
    def rule(words: str, list_: str, option: str = "") -> str:
        using = f'-n "__fish_gpuwarden_using_command {words}"'
        return f'complete -c gpuwarden {using} {option}-f -a "(gpuwarden {list_} {_ASK})"\n'

    arguments = (rule(words, x) for words, x in {**ARGUMENTS, **WHOLE}.items())
    options = (
        rule(words, x, f"-l {name} -r ") for name, (x, all_) in OPTIONS.items() for words in all_
    )
    return "\n" + "".join((*arguments, *options))
