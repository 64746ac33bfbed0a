"""Environment variables of programs: the names that payloads and settings may use."""

import re
from collections.abc import Collection, Iterable

from mainspring.core.model.base.errors import Invalid

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")
#: They identify the run, make the system load other code, or change which program is found.
_RESERVED = ("PATH", "BASH_ENV", "ENV", "IFS")
_RESERVED_PREFIXES = ("MAINSPRING_", "LD_", "DYLD_")
#: Interpreters and common tools load or run code by these: with one of them, any script runs any command.
_LOADS_CODE = (
    *("HOME", "SHELL", "SHELLOPTS", "PS4", "PROMPT_COMMAND", "ZDOTDIR", "FPATH", "CLASSPATH", "TCLLIBPATH"),
    *("GCONV_PATH", "GLIBC_TUNABLES", "LOCPATH", "NLSPATH", "KUBECONFIG", "MAKEFLAGS"),
    *("EDITOR", "VISUAL", "PAGER", "LESSOPEN", "LESSCLOSE", "CURL_HOME", "AWKPATH", "AWS_CONFIG_FILE"),
    *("PSQLRC", "WGETRC", "INPUTRC", "SCREENRC", "VIMINIT"),
    *("CC", "CXX", "CPP", "COMPILER_PATH", "GCC_EXEC_PREFIX", "RUSTFLAGS", "RUSTC", "TERMINFO"),
)
_LOADS_CODE_PREFIXES = (
    *("BASH_", "PYTHON", "PERL", "RUBY", "GEM_", "BUNDLE_", "NODE_", "NPM_CONFIG_", "DENO_", "BUN_", "LUA_", "PHP"),
    *("R_", "JAVA_", "_JAVA_", "JDK_", "DOTNET_", "CORECLR_", "COR_", "GUILE_", "ERL_", "ELIXIR_"),
    *("ANSIBLE_", "TF_", "CARGO_", "CMAKE_", "PIP_", "UV_", "OPENSSL_", "MALLOC_", "QT_"),
    *("GTK_", "GIO_", "XDG_", "GIT_", "SSH_", "RSYNC_", "DOCKER_", "CONTAINER"),
)
#: Options, configuration files and programs that a tool reads from its own variable, such as ``TAR_OPTIONS``.
_LOADS_CODE_SUFFIXES = ("_OPTIONS", "_OPTS", "_FLAGS", "PAGER", "EDITOR", "_ASKPASS", "_RSH", "_COMMAND")


def check_names(field: str, names: Iterable[str]) -> None:
    """Raise ``Invalid`` if one of these is not a variable that a payload could set."""
    for name in names:
        if not _NAME.fullmatch(name):
            raise Invalid(field, f"{name[:40]!r} cannot be the name of a variable")
        if name in _RESERVED or name.startswith(_RESERVED_PREFIXES):
            raise Invalid(field, f"{name} is not yours to set")


def check_allowed(field: str, names: Iterable[str], allowed: Collection[str]) -> None:
    """Raise ``Invalid`` unless the administrator's list has all of these variables."""
    for name in names:
        if name not in allowed:
            raise Invalid(field, f"{name} is not allowed here", "an administrator lists allowed names in tasks.env")


def check_allow_list(field: str, names: Iterable[str]) -> None:
    """Raise ``Invalid`` if one of these variables would let a submitter run code of their own."""
    for name in names:
        check_names(field, [name])
        upper = name.upper()
        if upper in _LOADS_CODE or upper.startswith(_LOADS_CODE_PREFIXES) or upper.endswith(_LOADS_CODE_SUFFIXES):
            raise Invalid(field, f"{name} makes programs load other code", "set it inside the script instead")
