"""Markup that is escaped unless it says that it is markup already."""

import html
import re
from collections.abc import Iterable
from typing import Any

# Control characters, marks that turn the direction of what follows, and lone surrogates have no
# place in a page, whoever put them into a name.
_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)

# A call with a dot in its name or a keyword among its arguments, or a keyword alone.
_CALL = r"\w+(?:\.\w+)+\((?:[^()]|\([^()]*\))*\)|\w+\((?:[^()]|\([^()]*\))*=(?:[^()]|\([^()]*\))*\)"
_CODE = re.compile(rf"(?<![\w.])({_CALL}|[a-z_]+=(?=[\s,.;:)]|$))")
_VOID = frozenset({"input", "link", "meta"})  # elements without an end


class Markup(str):
    """Text that is markup already; every other text is escaped before it enters a page."""

    __slots__ = ()


def escape(value: Any) -> Markup:
    r"""Return a value as markup, safe between tags and inside quoted attributes.

    Examples
    --------
    >>> escape("<b>'\x07'</b>")
    '&lt;b&gt;&#x27;�&#x27;&lt;/b&gt;'
    >>> escape(Markup("<b>"))
    '<b>'
    """
    if isinstance(value, Markup):
        return value
    return Markup(html.escape(_UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", str(value))))


def join(parts: Iterable[Any], separator: str = "") -> Markup:
    """Return the parts as one piece of markup."""
    return Markup(separator.join(escape(part) for part in parts))


def element(tag: str, *children: Any, **attributes: Any) -> Markup:
    """Return an element.

    Parameters
    ----------
    tag
        Its name.
    *children
        Text, escaped, or markup.
    **attributes
        `class_` becomes class, `aria_label` aria-label; True gives a bare attribute, None and
        False leave it out.

    Examples
    --------
    >>> element("a", "x < 1", href="#top", class_="name")
    '<a href="#top" class="name">x &lt; 1</a>'
    """
    written = "".join(
        f" {_attribute(name)}" if value is True else f' {_attribute(name)}="{escape(value)}"'
        for name, value in attributes.items()
        if value is not None and value is not False
    )
    end = "" if tag in _VOID else f"</{tag}>"
    return Markup(f"<{tag}{written}>{join(children)}{end}")


def _attribute(name: str) -> str:
    # SVG's viewBox is the one attribute that is not lower case with hyphens.
    return name.removesuffix("_").replace("_", "-")


def with_code(text: str) -> Markup:
    """Return a sentence in which calls and `keyword=` are set as code.

    Examples
    --------
    >>> with_code("Try sk.HMC(), or draws=; see (1).")
    'Try <code>sk.HMC()</code>, or <code>draws=</code>; see (1).'
    """
    parts = _CODE.split(text.replace("`", ""))
    return join(element("code", part) if i % 2 else part for i, part in enumerate(parts))
