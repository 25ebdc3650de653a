"""The shell script that serves one worker over SSH, and the lines it is asked with; needs only POSIX tools.

It runs in ``/bin/sh`` on the worker and reads a line a request from its standard input, so that a whole run
costs one shell start. What it says is a line that begins with a token nobody else knows; anything else is
output of the command that runs, or of a chatty start-up file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from runner.errors import CommandError
from runner.job import PYTHON, Command

MAX_WORD_BYTES = 100_000
"""Longer words can't be given to a program on Linux (128 KiB)."""
RESUMED_BYTES = 64 << 20
"""From this size on, what is there of a cut transfer is gone on with."""

_SCRIPT = r"""
T=@TOKEN@
M=@MARK@
NL='
'
exec 3<&0
umask 077
say() { printf '%s %s\n' "$T" "$*"; }
flat() { printf '%s' "$1" | tr '\n' ' '; }
if printf abcdef | {
  a=$(dd bs=65536 iflag=fullblock,count_bytes count=3 2>/dev/null); b=$(cat)
  [ "$a" = abc ] && [ "$b" = def ]; }; then
  take() { ROUNDLOG_PROCESS="$M" dd bs=131072 iflag=fullblock,count_bytes count="$1" status=none; }
elif printf abcdef | { a=$(head -c 3 2>/dev/null); b=$(cat); [ "$a" = abc ] && [ "$b" = def ]; }; then
  take() { ROUNDLOG_PROCESS="$M" head -c "$1"; }
else
  take() { ROUNDLOG_PROCESS="$M" dd bs=1 count="$1"; }
fi
if [ "$(printf x | sha256sum 2>/dev/null | cut -c1-8)" = 2d711642 ]; then H=sha256sum
elif [ "$(printf x | shasum -a 256 2>/dev/null | cut -c1-8)" = 2d711642 ]; then H='shasum -a 256'
else H=; fi
G=$H # of large files: with the processor's own instructions where there are some
[ "$(printf x | openssl dgst -sha256 -r 2>/dev/null | cut -c1-8)" = 2d711642 ] && G='openssl dgst -sha256 -r'
: "${H:=$G}"
if command -v setsid >/dev/null 2>&1; then S=setsid; else S=; fi
P=$(command -v python3 || command -v python || echo python3)
digest() { # size
  d=$H; [ "$1" -gt 8000000 ] && d=$G
  if [ -n "$d" ]; then set -- $(ROUNDLOG_PROCESS="$M" $d); echo "$1"; else cat >/dev/null; echo none; fi; }
marked() { grep -lsF "ROUNDLOG_PROCESS=$1" /proc/[0-9]*/environ 2>/dev/null |
  while IFS=/ read -r _ _ p _; do kill -9 "$p" 2>/dev/null && echo "$p"; done; }
endall() { n=0; k=1
  while [ $((k)) -gt 0 ] && [ $n -lt 9999 ]; do k=$(marked "$M" | wc -l); n=$((n + k)); done; }
part() { d=${1%/*}; b=${1##*/}; p=$d/.$b.part; }
there() { # name, size, hash, mode: is it there already, or how much of it?
  if [ -f "$1" ] && [ ! -L "$1" ] && { [ "$4" = 600 ] || [ -x "$1" ]; }; then
    s=$(wc -c <"$1"); [ $((s)) -eq "$2" ] && [ "$(digest "$2" <"$1")" = "$3" ] && { say there whole; return; }
  fi
  part "$1"; s=0; if [ -f "$p" ] && [ ! -L "$p" ]; then s=$(wc -c <"$p"); fi; say there $((s))
}
put() { # name, bytes to come, hash, mode, bytes there
  part "$1"; e=
  case $d in .) ;; *) e=$(mkdir -p "$d" 2>&1);; esac
  [ "$5" = 0 ] && rm -rf "$p"
  f=$( { take "$2" >>"$p"; } 2>&1 ); x=$?
  case $x in 0) o=$(digest $(($2 + $5)) <"$p");; 137) o=killed;; *) e="$e $f"; o=;; esac # by a later shell
  [ "$o" = none ] && { s=$(wc -c <"$p"); [ $((s)) -eq $(($2 + $5)) ] && o=$3; }
  if [ -n "$e" ] || [ "$o" != "$3" ]; then
    s=$(wc -c <"$p" 2>/dev/null)
    if [ -n "$e" ] || [ $((s)) -lt @RESUMED@ ] || [ $((s)) -ge $(($2 + $5)) ]; then rm -f "$p"; fi
    say bad "$(flat "$e $o")"; exit 1 # what is still to come is no request
  fi
  e=$( { [ "$4" = 600 ] || chmod "$4" "$p"; [ ! -d "$1" ] || rmdir "$1"; } 2>&1 && mv -f "$p" "$1" 2>&1 )
  if [ -z "$e" ]; then rm -f "$d"/.*.part; say ok; else rm -f "$p"; say bad "$(flat "$e")"; fi
}
get() { # name, most bytes, bytes there
  if [ ! -e "$1" ] && [ ! -L "$1" ]; then say no such file; return; fi
  if [ ! -f "$1" ] || [ -L "$1" ]; then say no regular; return; fi
  s=$(wc -c <"$1" 2>/dev/null) || { say no unreadable; return; }
  s=$((s)); o=$3; [ "$o" -le "$s" ] || o=0
  if [ "$s" -gt "$2" ]; then say no large "$s"; return; fi
  say raw "$((s - o))" "$o"
  if [ "$o" = 0 ]; then cat "$1" /dev/zero 2>/dev/null | take "$s"
  else { tail -c "+$((o + 1))" "$1"; cat /dev/zero; } 2>/dev/null | take "$((s - o))"; fi || exit 1 # short
  say sum "$s" "$(digest "$s" <"$1")"
}
size() { if [ -f "$1" ] && [ ! -L "$1" ]; then s=$(wc -c <"$1"); r="$r $((s))"; else r="$r -"; fi; }
sizes() { r=; for f; do size "$f"; done; }
starts() { case $1 in */*) [ -f "$1" ] && [ -x "$1" ];; *) command -v "$1" >/dev/null 2>&1;; esac; }
left() { [ -z "$S" ] || kill -9 "-$1" 2>/dev/null; }
F=@FOLDER@
o=$(cd; if [ -d "$F" ]; then echo old; else echo new; fi)
e=$( { cd && mkdir -p -m 700 "$F" && cd "$F" && [ -w . ]; } 2>&1 ) || { say nofolder "$(flat "$e")"; exit 1; }
cd; cd "$F"
@SWEEP@
say folder "$(pwd -P)"
say was "$o"
say ended "$n"
say fact hash "${H:-none}"
say fact setsid "${S:-none}"
say fact python "$("$P" -c 'import platform; print(platform.python_version())' 2>/dev/null || echo none)"
say fact system "$(uname -sm)"
say fact cpus "$(nproc 2>/dev/null || getconf _NPROCESSORS_ONLN 2>/dev/null || echo 1)"
say fact memory_kib "$(sed -n 's/^MemTotal: *\([0-9]*\).*/\1/p' /proc/meminfo 2>/dev/null)"
say fact disk_free_kib "$(df -Pk . 2>/dev/null | sed -n '2s/^.* \([0-9][0-9]*\)  *[0-9]*%.*$/\1/p')"
say fact gpus "$(ls -d /dev/nvidia[0-9]* 2>/dev/null | wc -l)"
say fact clock_s "$(date +%s)"
say ready
while IFS= read -r L; do eval "$L"; done
"""


_KILL_GROUP = """
kill -TERM -@PID@ 2>/dev/null || kill -TERM @PID@ 2>/dev/null
i=0
while kill -0 -@PID@ 2>/dev/null && [ $i -lt 10 ]; do sleep 0.1 2>/dev/null || sleep 1; i=$((i+1)); done
kill -KILL -@PID@ 2>/dev/null
"""
_KILL_MARKED = """
grep -lsF ROUNDLOG_PROCESS=@MARK@ /proc/[0-9]*/environ 2>/dev/null |
  while IFS=/ read -r _ _ p _; do kill -KILL "$p" 2>/dev/null; done
exit 0
"""


def script(token: str, mark: str, folder: str, *, sweep: bool = True) -> bytes:
    """Return what ``/bin/sh`` is fed with to serve a worker.

    Args:
        token: begins all that it says; letters and digits.
        mark: value of ``ROUNDLOG_PROCESS`` for its processes; leftovers that have it are ended first.
        folder: the worker's, absolute or relative to the home folder.
        sweep: whether to end leftovers; not beside another shell of the worker.
    """
    text = (
        _SCRIPT.replace("@SWEEP@", "endall" if sweep else "n=0")
        .replace("@TOKEN@", token)
        .replace("@MARK@", quoted(mark))
    )
    return text.replace("@FOLDER@", quoted(folder)).replace("@RESUMED@", str(RESUMED_BYTES)).encode()


def quoted(text: str) -> str:
    """Quote a word for the shell, on one line."""
    return "'" + text.replace("'", "'\\''").replace("\n", "'\"$NL\"'") + "'"


def path(name: str) -> str:
    """Return a name inside the folder as a word for the shell."""
    return quoted(f"./{name}")


def request_run(
    command: Command, env: Mapping[str, str], remove: Sequence[str], expect: Sequence[str], *, fed: bool
) -> str:
    """Return the line that runs a command.

    It says ``pid`` and a number, and at the end ``end``, the exit status and the size of each expected file;
    or ``nostart``, and ``there`` if there is such a file; or ``stuck`` and what could not be removed.

    Args:
        command: a list is run as it is, a string by ``/bin/sh -c``.
        env: what is added to the environment; by way of the standard input, so that nobody sees it.
        remove: names of files to delete before.
        expect: names of files whose sizes are wanted after.
        fed: whether the command reads what follows the line.

    Raises:
        CommandError: the command or its environment is none a process can have.
    """
    words = ["/bin/sh", "-c", command] if isinstance(command, str) else list(command)
    _check([*words, *(f"{name}={value}" for name, value in env.items())], words[0])
    shown = ['"$P"' if word == PYTHON else quoted(word) for word in words]
    exports = "".join(f"export {name}={quoted(value)}; " for name, value in env.items())
    files = " ".join(map(path, remove))
    cleared = f"e=$(rm -rf {files} 2>&1); " if files else "e=; "
    source = ("<&3" if fed else "</dev/null") + " 3<&-"  # a shell's job reads nothing unless told to
    sizes = " ".join(map(path, expect))
    return (
        f'{cleared}if [ -n "$e" ]; then say stuck "$(flat "$e")"; elif starts {shown[0]}; then '
        f'{{ {exports}export ROUNDLOG_PROCESS="$M"; exec $S {" ".join(shown)}; }} {source} 2>&1 & '
        f'c=$!; say pid $c; wait $c; x=$?; left $c; sizes {sizes}; say end $x "$r"; '
        f"elif [ -f {shown[0]} ]; then say nostart there; else say nostart absent; fi"
    )


def request_kill(pid: int | None, mark: str) -> bytes:
    """Return a script that ends a process group: gently, after a second by force; then all with the mark."""
    group = "" if pid is None else _KILL_GROUP.replace("@PID@", str(pid))
    return (group + _KILL_MARKED.replace("@MARK@", quoted(mark))).encode()


def _check(words: Iterable[str], program: str) -> None:
    for word in words:
        if "\0" in word:
            raise CommandError(f"can't start {program!r}: a NUL character in its words or environment")
        if len(word.encode("utf-8", "surrogateescape")) > MAX_WORD_BYTES:
            raise CommandError(f"can't start {program!r}: a word of more than {MAX_WORD_BYTES} bytes")
