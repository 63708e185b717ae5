# SPDX-License-Identifier: Apache-2.0
"""Builds the site of documentation with doxygen.

site.py FOLDER           builds it in FOLDER; FOLDER/index.html is its first page. Ends with 1 if doxygen finds a fault in a
                         text, for example a link to nothing or a name of NAMES.md that has no page, or if a public name
                         or a member has no comment. Lists each of these with its file and line
site.py --filter FILE    prints FILE as doxygen should read it; doxygen calls this
"""

import html
import pathlib
import re
import shutil
import subprocess
import sys

sys.dont_write_bytecode = True  # no files beside the sources
import finish

ROOT = pathlib.Path(__file__).resolve().parents[2]
HEADERS = ROOT / "include" / "tessera"
EXAMPLES = ROOT / "examples"
TOOL = EXAMPLES / "tessera_replay" / "include" / "tessera"


def pages():
    """The Markdown pages of the site."""
    found = [ROOT / "README.md", *sorted(HEADERS.glob("*.md")), *sorted(HEADERS.glob("*/*.md"))]
    found += [*sorted(EXAMPLES.glob("*.md")), *sorted(EXAMPLES.glob("*/README.md")), *sorted((ROOT / ".github").glob("[A-OQ-Z]*.md"))]
    return found


def examples():
    """The sources that the site shows: the numbered examples, and those that a page links."""
    found = set(EXAMPLES.glob("[0-9]*.cpp"))
    for page in pages():
        for target in re.findall(r"\]\(([^()#]+\.(?:cpp|hpp|py))\)", page.read_text()):
            path = (page.parent / target).resolve()
            if path.is_relative_to(EXAMPLES) and not path.is_relative_to(TOOL):
                found.add(path)
    return sorted(found)


def name_of_example(path):
    return str(path.relative_to(EXAMPLES))


def label_of_page(path):
    if path == ROOT / "README.md":
        return "mainpage"
    return "page_" + re.sub(r"\W", "_", str(path.relative_to(ROOT).with_suffix("")).lower())


def anchor_of(heading):
    """The anchor that GitHub gives a heading."""
    return re.sub(r"[^a-z0-9 _-]", "", heading.lower()).replace(" ", "-")


def label_of_heading(path, anchor):
    return label_of_page(path) + "_" + anchor.replace("-", "_")


def public_names():
    """The names of NAMES.md, except suffixes of literals."""
    rows = re.findall(r"^\| (`[^|]*)\|", (HEADERS / "NAMES.md").read_text(), re.M)
    return [name for row in rows for name in re.findall(r"`([A-Za-z0-9_:]+)`", row) if "::_" not in name]


def reference(name):
    return name if name.startswith("TESSERA_") else "tessera::" + name


def below(path):
    """Where a header is in the namespace."""
    return path.relative_to(TOOL if path.is_relative_to(TOOL) else HEADERS)


def page_of_header(path):
    """What a link to a header leads to: the public name that is called as the header, or else the file."""
    name = "::".join(below(path).with_suffix("").parts)
    return reference(name) if name in PUBLIC else pathlib.Path("tessera") / below(path)


# Markdown


def link(page, text, target):
    """A link of a page as doxygen writes it, on one line. A link to what the site does not have is only its text."""
    text = " ".join(text.split())
    if re.match(r"[a-z]+:", target):
        return f"[{text}]({target})"
    name, _, anchor = target.partition("#")
    path = (page.parent / name).resolve() if name else page
    if path.suffix == ".md" and path in PAGES:
        label = label_of_heading(path, anchor) if anchor else label_of_page(path)
        return f"[{text}](@ref {label})"
    if path in SITED:
        return f"[{text}](@ref {page_of_header(path)})"
    if path.is_relative_to(EXAMPLES) and path in SHOWN:
        return f"[{text}](@ref {name_of_example(path)})"
    return text


def markdown(page):
    text = re.sub(r"(?<!!)\[!\[([^]]*)\]\(([^()]*)\)\]\([^()]*\)", r"![\1](\2)", page.read_text())  # an image that is a link
    parts = re.split(r"(^ *```.*?^ *```$)", text, flags=re.M | re.S)  # every second part is code
    for i, part in enumerate(parts):
        if i % 2:
            part = re.sub(rf"^ {{{len(part) - len(part.lstrip())}}}", "", part, flags=re.M)
            # Doxygen knows languages by the endings of files.
            ending = {"cpp": ".cpp", "python": ".py"}
            parts[i] = re.sub(r"```(\w*)\n", lambda found: "```{" + ending.get(found[1], ".unparsed") + "}\n", part, count=1)
            continue
        part = re.sub(r"^(\d+)\. (.*\n(?:(?:   .*)?\n)*)", item, part, flags=re.M)
        part = re.sub(r"`([^`]*)`", lambda found: code_cell(found[1]) if re.search("[@']|--", found[1]) else found[0], part)
        part = re.sub(r"(?<![-|:\w])--(?=\w)", r"\\--", part)  # not a dash
        part = re.sub(r"!\[([^]]*)\]\(([^()]*)\)", lambda found: image(page, *found.groups()), part)
        part = re.sub(r"\[([^][]*)\]\(([^()]*)\)", lambda found: link(page, *found.groups()), part)
        part = re.sub(r"^##+ (.*)$", lambda found: f"{found[0]} {{#{label_of_heading(page, anchor_of(found[1]))}}}", part, flags=re.M)
        part = re.sub(r"^# .*$", lambda found: f"{found[0]} {{#{label_of_page(page)}}}", part, count=1, flags=re.M)
        if page == HEADERS / "NAMES.md":
            part = re.sub(r"^\| `[^|]*\|", lambda row: re.sub(r"`([A-Za-z0-9_:]+)`", link_to_name, row[0]), part, flags=re.M)
        parts[i] = part
    return "".join(parts)


def item(found):
    """An item of a numbered list as a paragraph: after code in an item, doxygen would count from one again."""
    return f"<b>{found[1]}.</b> " + re.sub(r"^   ", "", found[2], flags=re.M) + "\n"


def link_to_name(found):
    return found[0] if "::_" in found[1] else f'@ref {reference(found[1])} "{found[1]}"'


def image(page, text, target):
    shown = (page.parent / target).resolve()
    return f'<img src="{shown.name}" alt="{html.escape(text)}" style="max-width:100%"/>'


def headings():
    """The sections of the pages, as finish.add_to_search takes them."""
    found = []
    for page in pages():
        text = re.sub(r"^ *```.*?^ *```$", "", page.read_text(), flags=re.M | re.S)
        file = "index.html" if page == ROOT / "README.md" else label_of_page(page) + ".html"
        title = ""
        for part in re.split(r"^(?=#+ )", text, flags=re.M)[1:]:
            heading, _, body = part.partition("\n")
            level, _, name = heading.partition(" ")
            plain = re.sub(r"\[([^]]*)\]\([^()]*\)", r"\1", name).replace("`", "")
            title = title or plain
            anchor = "" if level == "#" else "#" + label_of_heading(page, anchor_of(name))
            found.append(finish.Section(plain, title, file + anchor, re.sub(r"\]\([^()]*\)", "", body)))
    return found


# Comments of headers


def prose(line):
    """Escapes what doxygen would read as a command or as HTML, outside backticks."""
    parts = re.split(r"(`[^`]*`)", line)
    for i, part in enumerate(parts):
        if i % 2:
            if "'" in part:  # which would end the code
                parts[i] = code_cell(part.strip("`"))
            continue
        parts[i] = re.sub(r"([@\\#%]|--(?=\w))", r"\\\1", html.escape(parts[i], quote=False))
        parts[i] = re.sub(r"\b(policy|provider|recipe)\(\)", r"%\1()", parts[i])  # not the laws of these names
        parts[i] = parts[i].replace("&gt;::", "&gt;\\::")  # no link to a member of a specialization
    return "".join(parts)


def code_cell(text):
    return "<code>" + re.sub(r"([@\\#%]|--)", r"\\\1", html.escape(text, quote=False)) + "</code>"


def continued(above, cell):
    """A cell of a table, and its next line."""
    return above + cell if re.search(r"\w-$", above) else f"{above} {cell}".strip()


FIELDS = {"Returns": "\\returns ", "Requires": "\\pre "}


def comment(lines, is_header):
    """Converts the lines of a comment, without ///. Returns at most as many lines."""
    out = []
    i = 0
    if is_header:
        out.append("\\file")
    while i < len(lines):
        line = lines[i]
        if line.startswith("    ") and i and not lines[i - 1].strip():  # an example
            while i < len(lines) and (lines[i].startswith("    ") or not lines[i].strip()):
                out.append(lines[i])
                i += 1
            continue
        if line.startswith("|"):  # a table, whose rows may continue
            rows = []
            while i < len(lines) and lines[i].startswith("|"):
                cells = [cell.strip() for cell in re.split(r"(?<!\|)\|(?!\|)", lines[i].strip().strip("|"))]
                if rows and not cells[0] and len(cells) == len(rows[-1]):
                    rows[-1] = [continued(above, cell) for above, cell in zip(rows[-1], cells)]
                else:
                    rows.append(cells)
                i += 1
            for n, row in enumerate(rows):
                cells = row if n == 1 else [code_cell(row[0]) if n and row[0] else prose(row[0]), *map(prose, row[1:])]
                out.append("| " + " | ".join(cells) + " |")
            continue
        field = re.match(r"  ([A-Z][a-z]*(?: \w+)?): +(.*)$", line)
        if field:
            text = [field[2]]
            i += 1
            while i < len(lines) and re.match(r"    +\S", lines[i]):
                text.append(lines[i].strip())
                i += 1
            start = FIELDS.get(field[1], "\\field{" + field[1] + "} ")
            out.append(start + prose(text[0]))
            out += map(prose, text[1:])
            continue
        if line.startswith('  "'):  # a rule
            items = []
            while i < len(lines) and lines[i].startswith("  ") and not re.match(r"  [A-Z][a-z]*(?: \w+)?: ", lines[i]):
                if lines[i].startswith('  "'):
                    items.append(lines[i].strip())
                else:
                    items[-1] += " " + lines[i].strip()
                i += 1
            text = [f"<li>{prose(text)}</li>" for text in items]
            text[0] = '<ul class="rules">' + text[0]
            text[-1] += "</ul>"
            out += text
            continue
        if re.match(r"  \S.*?\S {2,}\S", line):  # an expression, and what it does
            rows = []
            while i < len(lines) and lines[i].startswith("  "):
                row = re.match(r"  (\S.*?) {2,}(\S.*)$", lines[i])
                if row:
                    rows.append([row[1], row[2]])
                elif re.match(r"  \S", lines[i]):
                    rows.append([lines[i].strip(), ""])
                else:
                    rows[-1][1] += " " + lines[i].strip()
                if re.match(r"  [A-Z][a-z]*(?: \w+)?: ", lines[i]):
                    rows.pop()
                    break
                i += 1
            text = ["<tr><td>" + code_cell(name) + "</td><td>" + prose(what) + "</td></tr>" for name, what in rows]
            text[0] = '<table class="expressions">' + text[0]
            text[-1] += "</table>"
            out += text
            continue
        out.append(prose(line.strip()))
        i += 1
    return out


# What no reader looks up: defaulted comparison, deleted assignment, friends, deduction guides.
DROPPED = re.compile(
    r"^[ ]*(?:\[\[nodiscard\]\] )?(?:friend )?(?:constexpr )?bool operator==\([^;{]*\) (?:const )?(?:noexcept )?= default;$"
    r"|^[ ]*(?:constexpr )?[\w:<>, ]+& operator=\([^;{]*\)(?: noexcept)? = delete;$"
    r"|^[ ]*friend [\w:<>, ]+;$"
    r"|^[ ]*friend [^\n]*\{[^\n]*\}$"
    r"|^template <[^\n]*>\n(?:  requires [^;{]*?\n)?(?:explicit )?\w+\([^;]*\)\s*->[^;{]*;$", re.M)


def first_sentence(text):
    text = " ".join(text.split())
    return re.match(r".*?[.](?= [A-Z`(]|$)|.*", text)[0]


def split_arguments(text):
    """The parts of a text between commas that are in no brackets, up to the bracket that closes the list."""
    parts = [""]
    depth = 0
    for c in text:
        if c in "([{<":
            depth += 1
        elif c in ")]}>":
            if depth == 0:
                break
            depth -= 1
        if c == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += c
    return [part.strip() for part in parts if part.strip()]


def parameters(lines, i, name):
    """The names of the parameters of a function that line i declares; None for one without a name."""
    text = " ".join(lines[i:i + 6]).partition(name + "(")[2]
    found = [re.search(r"\(\*(\w+)\)", part) or re.match(r"(?:const )?[\w:]+.*[\s&*>](\w+)$", part.split(" = ")[0].removesuffix("{}"))
             for part in split_arguments(text)]
    return [name and name[1] for name in found]


def with_names(line, name, names):
    """A declaration in which each parameter without a name has that of the concept."""
    head, _, rest = line.partition(name + "(")
    inner, _, tail = rest.partition(")")
    own = parameters([line], 0, name)
    if "(" in inner or "<" in inner or len(own) != len(names) or None not in own:
        return line
    parts = [part if mine else f"{part} {theirs}" for part, mine, theirs in zip(inner.split(", "), own, names)]
    return f"{head}{name}({', '.join(parts)}){tail}"


class Meaning:
    """What a function does, in words that name its parameters."""

    def __init__(self, text, names=()):
        self.text = text
        self.names = names

    def of(self, names):
        """The text for a function whose parameters have other names, found by their positions. A parameter without one keeps its name."""
        renamed = {mine: other for mine, other in zip(self.names, names) if mine and other and mine not in names and other not in self.names}
        return re.sub(r"`[^`]*`", lambda code: re.sub(r"\w+", lambda word: renamed.get(word[0], word[0]), code[0]), self.text)


def expressions(path):
    """The names in the tables of the comments of a header, with what the last column says of them."""
    found = {}
    rows = []
    for line in path.read_text().split("\n"):
        text = re.match(r"\s*/// ?(.*)$", line)
        text = text[1] if text else ""
        if text.startswith("|") and not text.startswith("|-"):
            cells = [cell.strip() for cell in re.split(r"(?<!\|)\|(?!\|)", text.strip().strip("|"))]
            rows.append([cells[0], cells[-1]])
        elif re.match(r"  \S.*?\S {2,}\S", text) and not re.match(r"  [A-Z][a-z]*(?: \w+)?: ", text):
            rows.append(re.split(r" {2,}", text.strip(), maxsplit=1))
        elif re.match(r" {6,}\S", text) and rows:
            rows.append(["", text.strip()])
        else:
            rows.append(None)
    name = None
    for row in rows:
        if row is None:
            name = None
        elif row[0]:
            called = re.match(r"(?:\w+(?:\.|::))?(\w+)(\(.*\))?$", row[0])
            name = called[1] if called else None
            if name in found:
                name = None
            if name:
                found[name] = Meaning(row[1], split_arguments((called[2] or "")[1:]))
        elif name:
            found[name].text = continued(found[name].text, row[1])
    for meaning in found.values():
        if meaning.names and re.match("(whether|how|what|a|an|the|all) ", meaning.text):
            meaning.text = "returns " + meaning.text
    return {name: meaning for name, meaning in found.items() if len(meaning.text.split()) > 1}


def declared(line):
    """The name of a member that a line declares, or None."""
    if re.match(r"\s*(return|throw|delete|else|if|for|while|co_|static_assert|requires|case)\b", line):
        return None
    found = re.match(r"\s+(?:\[\[[^]]*\]\] )*(?:(?:[\w:<>,*&\[\]]|decltype\(auto\))+ (?:[*&]+)?)+?(\w+)\(", line)
    if found:
        return found[1]
    found = re.match(r"\s+using (\w+) =|\s+static constexpr [\w:<>,* ]+ \*?(\w+)(?: =|\{)|\s+struct (\w+)(?: \{|;)", line)
    return next(filter(None, found.groups())) if found else None


def commented(path, of=None):
    """The first sentence of the comment of each member that has one; of overloads, in their order. `of` names a class."""
    found = {}
    text = path.read_text()
    if of:
        part = re.search(rf"^(?:class|struct) {of}(?: [^\n]*)?\{{$.*?^\}};", text, re.M | re.S)
        text = part[0] if part else ""
    lines = text.split("\n")
    block = []
    for i, line in enumerate(lines):
        text = re.match(r"\s+/// ?(?!<)(.*)$", line)
        if text:
            block.append(text[1])
        elif block and not re.match(r"\s*(template|requires) ", line):
            name = declared(line)
            if name:
                sentence = first_sentence("\n".join(block).split("\n\n")[0].split("\n  ")[0])
                found.setdefault(name, []).append(Meaning(sentence, parameters(lines, i, name)))
            block = []
    return found


def axes():
    """The aliases of a recipe, with the questions of the page of the architecture."""
    rows = re.findall(r"^\| \[(\w+)\]\(policy/\w+\.hpp\) \| ([^|]*) \|", (HEADERS / "README.md").read_text(), re.M)
    return dict(rows)


def family():
    """The functions of a recipe of a family, with what the page for contributors says of them."""
    text = (ROOT / ".github" / "CONTRIBUTING.md").read_text()
    return {name: what[0].upper() + what[1:] for name, what in re.findall(r"^\* `(\w+)\(settings\)` (.*)$", text, re.M)}


# Whose comments say what a member of this name does in each header of a folder.
MEANINGS = {
    "policy": ["policy/*.hpp"],
    "provider": ["provider/provider.hpp", "provider/capabilities.hpp", "provider/bank_policy.hpp"],
    "config": ["config/parse.hpp"],
    "extension": ["extension/extension.hpp", "detail/extensions/extension.hpp"],
    "concurrent": ["caching_allocator.hpp", "allocator_adaptor.hpp"],
    "debug": ["caching_allocator.hpp", "allocator_adaptor.hpp", "provider/provider.hpp", "provider/capabilities.hpp"],
    "plan": ["caching_allocator.hpp", "allocator_adaptor.hpp"],
    "trace": ["caching_allocator.hpp", "allocator_adaptor.hpp"],
    "interop": ["caching_allocator.hpp", "allocator_adaptor.hpp"],
    "": ["caching_allocator.hpp", "allocator_adaptor.hpp"],
}


# Names that mean something else in other types.
AMBIGUOUS = {"acquire", "begin", "end", "explain", "get", "release"}


def known_members(path):
    """What a member without a comment does, by its name. A concept or the allocator says it."""
    folder = str(below(path).parent)
    known = {name: Meaning(text) for name, text in {**axes(), **family()}.items()} if folder == "recipe" else {}
    for pattern in MEANINGS.get("" if folder == "." else folder, []):
        for header in sorted(HEADERS.glob(pattern)):
            sources = [expressions(header)]
            if folder in (".", "concurrent", "debug", "plan", "trace", "interop"):
                sources.append({name: texts[0] for name, texts in commented(header).items()})
            for more in sources:
                for name, text in more.items():
                    if folder in ("policy", "provider", "debug") or name not in AMBIGUOUS:
                        known.setdefault(name, text)
    return known


def settings_of(path):
    """The members of the settings of a grammar, with what the page of the keys says of each."""
    text = path.read_text()
    grammar = re.search(r'string_view name = "(\w+)"', text)
    if not grammar:
        return {}
    page = (HEADERS / "config" / "README.md").read_text().split(f"\n## {grammar[1]}\n")[1].split("\n## ")[0]
    effects = dict(re.findall(r"^\| `(\w+)` \|(?:(?:\\\||[^|])*\|){2} ((?:\\\||[^|])*?) \|", page, re.M))
    return {member: f"`{key}`: {effects[key].replace('none: ', 'no effect: ')}." for key, member in reversed(re.findall(r'"(\w+)",\s+&s::(\w+)', text))}


def public_uses():
    """What NAMES.md says of each name."""
    rows = re.findall(r"^\| (`[^|]*)\| ([^|]*) \|$", (HEADERS / "NAMES.md").read_text(), re.M)
    return {name: use for names, use in rows for name in re.findall(r"`([A-Za-z0-9_:]+)`", names)}


def inherited(texts):
    """What the primary template says of a member; of overloads, of each in turn. The last one stays."""
    return (texts.pop(0) if len(texts) > 1 else texts[0]) if texts else None


def comment_above(lines, i):
    """The comment of the class that line i declares, perhaps after lines of its template."""
    while i > 0 and not re.match(r"\s*(///|$|.*[;}]$)", lines[i - 1]):
        i -= 1
    end = i
    while i > 0 and re.match(r"\s*///", lines[i - 1]):
        i -= 1
    return "\n".join(re.sub(r"^\s*/// ?", "", line) for line in lines[i:end])


def sentence_about(name, text):
    """The first sentence or item of a comment that names a member in backticks, or None."""
    for part in re.split(r"\n\n|\n(?=[*\\\\] ?)|(?<=[.])\s+(?=[A-Z`])", text):
        if f"`{name}`" in part and not part.startswith(("\\", " ")):
            return re.sub(r";$", ".", " ".join(part.removeprefix("* ").split()))
    return None


def not_compiled(line):
    """What a call says that exists only so that its error has words."""
    found = re.match(r"\s+(?:\[\[nodiscard\]\] )?(?:missing::(\w+)|refused) \w+\(", line)
    if not found:
        return None
    return f"Does not compile: {found[1].replace('_', ' ')}." if found[1] else "Does not compile: the name of the type that it returns says why."


def of_form(line, base):
    """What the form of a declaration says: what the compiler writes, an override, or the constructor of a door."""
    if line.endswith("= default;"):
        if "operator<=>" in line:
            return "Compares the members one by one."
        if re.match(r"\s+(?:constexpr )?(?:\w+(?:<[^>]*>)?& operator=|\w+)\((?:const )?(\w+)(?:<[^>]*>)?&", line):
            return "As the compiler writes it: each member by itself."
    if re.match(r"\s+explicit door\(", line):
        return "Called by `get()` of an allocator."
    name = re.search(r"(\w+)\([^()]*\)(?: const)?(?: noexcept)? override", line)
    if name and re.match(r"(c10|at|std)::", base):
        return f"Overrides `{base}::{name[1]}`."
    return None


def adds_to_concept(said):
    """Whether a comment says only what the text of the concept does not: it does not say what the function does."""
    return re.match(r"Returns (?!null|false)|(?!Returns\b)[A-Z][a-z]+s\b|(A|The|Whether|How|Why|Made) ", said) is None


def fill(lines, path):
    """Gives declarations without a comment one from where their text stands: a concept, their class, a page, NAMES.md."""
    known = known_members(path)
    folder = below(path).parent
    scope = "" if str(folder) in (".", "core") else f"{folder}::"
    uses = public_uses()
    settings = settings_of(path) if str(folder) == "config" else {}
    about = {}  # the comment of the class, by its indentation
    primary = {}  # what the primary template of the class says of its members
    class_name = base = ""
    last = ("", "", "")  # the last declaration: its indentation, its name, the first sentence of its comment
    function = function_said = ""  # the last declaration in a namespace
    block = []
    for i, line in enumerate(lines):
        if line.startswith("using detail::"):
            name = line.removeprefix("using detail::").rstrip(";")
            line = lines[i] = f"using {name} = detail::{name};"
        text = re.match(r"\s*/// ?(.*)$", line)
        if text:
            if not block:
                begin_of_block = i
            block.append(text[1])
        if re.match(r"\s*(\};|(class|struct) )", line):
            last = ("", "", "")
        if re.match(r"\s*(//|#|\}|$|template |requires\b)", line):
            continue
        said = first_sentence(re.split(r"\n\n|\n\\", "\n".join(block))[0]) if block else ""
        block = []
        begin = re.match(r"\s*(?:class|struct) ([\w:<>, ]+?)(?: final)?(?: : (?:public )?([\w:]+).*)? \{$", line)
        if begin:
            primary = commented(path, begin[1].split("<")[0]) if begin[1].endswith(">") else {}
            class_name = begin[1].split("<")[0].split("::")[-1]
            base = begin[2] or ""
            about[len(line) - len(line.lstrip())] = comment_above(lines, i)
        if "///<" in line:
            continue
        if line.startswith(" "):
            name = declared(line)
            meaning = known.get(name) or inherited(primary.get(name))
            if meaning and meaning.names:
                line = lines[i] = with_names(line, name, meaning.names)
            text = not_compiled(line) or (meaning and meaning.of(parameters(lines, i, name))) or of_form(line, base)
            if text and re.match(r"\s+static constexpr bool \w+ =", line) and not re.match("(?i)whether ", text):
                text = f"Whether {text[0].lower()}{text[1:]}"
            text = text and prose(text)
            if said and meaning and str(folder) == "provider" and adds_to_concept(said):
                lines[begin_of_block] = lines[begin_of_block].replace("/// ", f"/// {text[0].upper()}{text[1:]}. ", 1)
            field = None if name else re.match(r"\s+(?:\[\[TESSERA_NO_UNIQUE_ADDRESS\]\] )?(?:static constexpr )?[\w:<>, ]+ (\w+)(?: = [^;]*|\{.*\})?;", line)
            indent = re.match(r"\s*", line)[0]
            if field and field[1] in known and str(folder) == "recipe":
                text = prose(known[field[1]].text)
            elif field:
                text = prose(settings[field[1]]) if field[1] in settings else sentence_about(field[1], about.get(len(indent) - 2, ""))
            if name and last[:2] == (indent, name) and not said and name != class_name:
                said = last[2]
                text = text or said
            if name and len(indent) <= len(last[0] or indent):
                last = (indent, name, said or text or "")
        elif "operator\"\"" in line:
            text = prose(uses["literals::_MiB"])
        else:
            name = re.match(r"(?:\[\[[^]]*\]\] )?(?:inline |constexpr |static )*(?:[\w:<>,]+ )+&?(\w+)(?:\(| =| ?\{)", line)
            text = prose(uses[scope + name[1]]) if name and scope + name[1] in uses else None
            if name and function == name[1]:
                text = function_said
            if name:
                function, function_said = name[1], said or text
        if not text:
            continue
        first = i
        while re.match(r"\s*(template <|requires )", lines[first - 1]) or (first > 1 and re.match(r"\s*template <[^;]*$", lines[first - 2])
                                                                          and lines[first - 1].rstrip().endswith(">")):
            first -= 1
        above = re.sub(r"\s*// .*|\s*///[<@].*", "", lines[first - 1])
        if re.match(r"\s*///", above) or lines[first].lstrip().startswith("/**") or not re.match(r"\s*($|//|#|.*[;{}]$|\w+:$)", above):
            continue
        if not re.match(r"\w+\(", text):
            text = text[0].upper() + text[1:]
        if text.endswith("`"):
            text += "."
        indent = re.match(r"\s*", lines[first])[0]
        lines[first] = f"{indent}/** {text} */ {lines[first].lstrip()}"
    return lines


def without_private(lines):
    """Empties the private parts of classes."""
    end = None
    for i, line in enumerate(lines):
        if end and re.match(end, line):
            end = None
        if end:
            lines[i] = ""
        elif re.match(r"\s*private:$", line):
            indent = len(line) - len(line.lstrip())
            end = rf" {{{indent}}}(public|protected):$| {{{indent - 1}}}\}}"
            lines[i] = ""
    return lines


# A function for each type of a concept. Doxygen takes functions that differ only in their constraints for one.
OVERLOAD = re.compile(r"^template <([\w:]+) (\w+)>\n([\w:]+(?: [\w:]+)+)\(const \2& (\w+)\) \{$", re.M)


def header(path):
    text = DROPPED.sub(lambda found: "//-" + "\n" * found[0].count("\n"), re.sub(r"::inline v\d+_\d+", "", path.read_text()))
    text = re.sub(r"(?<=\d)'(?=\d)", "", text)  # doxygen 1.9 takes a separator of digits for a quote
    # The private class between a front end and its public base, whose calls a reader looks for.
    text = re.sub(r"public (?:tessera::)?(?:detail::wrapping|allocator)_adaptor<\s*(\w+)<[^{]*>\s*\{",
                  lambda found: f"public tessera::allocator_adaptor<{found[1]}, Inner> {{" + "\n" * found[0].count("\n"), text)
    overloads = [found[3] for found in OVERLOAD.finditer(text)]
    text = OVERLOAD.sub(lambda found: f"{found[3]}(const {found[1]} auto& {found[4]}) {{\n" if overloads.count(found[3]) > 1 else found[0], text)
    lines = without_private(text.split("\n"))
    first_namespace = next((i for i, line in enumerate(lines) if line.startswith("namespace ")), len(lines))
    out = []
    has_description = False
    i = 0
    while i < len(lines):
        begin = re.match(r"(\s*)/// ?(.*)$", lines[i])
        if not begin or begin[2].startswith(("<", "@")):
            out.append(lines[i])
            i += 1
            continue
        block = []
        first = i
        while i < len(lines) and re.match(r"\s*///(?!<)", lines[i]):
            block.append(re.sub(r"^\s*/// ?", "", lines[i]))
            i += 1
        after = lines[i].strip() if i < len(lines) else ""
        stands_alone = after == "" or after.startswith("// ")
        describes_header = stands_alone and not has_description and first < first_namespace
        has_description = has_description or describes_header
        if (stands_alone and not describes_header) or after == "//-":  # of nothing that follows
            out += [""] * (i - first)
            continue
        text = comment(block, describes_header)
        if len(text) > i - first and out and not out[-1]:
            out.pop()
        out += [""] * (i - first - len(text))
        if lines[first - 1].strip() == "///@{":  # with which doxygen would join it
            text[0] = f"/** {text[0]}"
            text[-1] += " */"
            out += text
        else:
            out += [f"{begin[1]}/// {line}" for line in text]
    return "\n".join(fill(out, path))


# The site


def folders():
    """What each folder holds, as the page of the architecture says."""
    rows = re.findall(r"^\| `(\w+)/` \| ([^|]*) \| [^|]* \|$", (HEADERS / "README.md").read_text(), re.M)
    return [(name, text) for name, text in rows if (HEADERS / name).is_dir() and name not in ("core", "detail")]


def headers():
    found = [*sorted(HEADERS.rglob("*.hpp")), *sorted(TOOL.rglob("*.hpp"))]
    return [path for path in found if not path.is_relative_to(HEADERS / "detail")]


def described_by_names():
    """The headers without a comment of their own."""
    return [path for path in headers() if "\\file" not in header(path)]


def names_of(path):
    """The public names that a header declares in its namespace."""
    folder = "::".join(below(path).parts[:-1])
    scope = "" if folder in ("", "core") else folder + "::"
    inside = ""
    found = []
    for line in path.read_text().split("\n"):
        begin = re.match(r"namespace tessera::inline v\d+_\d+(?:::)?([\w:]*) \{", line)
        inside = begin[1] if begin else inside
        name = (re.match(r"(?:class|struct|enum class|concept|using|inline constexpr [\w:<>]+) (?:\[\[.*?\]\] )?(\w+)\b(?!;)", line)
                or re.match(r"(?:\[\[[^]]*\]\] )?(?:[\w:<>,*&]+ )+[*&]?(\w+)\(", line))
        full = scope + name[1] if name else ""
        if full in PUBLIC and inside + "::" == (scope or "::") and full not in found:
            found.append(full)
    return found


def write_extra(path):
    """Namespaces, the examples, and the macros of the version."""
    text = ["/** \\namespace tessera\n Caching allocators composed from policies. Names of core/ and of the root are here. */"]
    for name, what in folders():
        plain = re.sub(r"\[([^]]*)\]\([^()]*\)", r"\1", what)
        text.append(f"/** \\namespace tessera::{name}\n {plain[0].upper() + plain[1:]}. */")
    for header_file in described_by_names():
        names = ", ".join(reference(name) for name in names_of(header_file))
        text.append(f"/** \\file tessera/{below(header_file)}\n {f'Declares {names}' if names else 'Declares no public name'}. */")
    text.append("/** \\namespace tessera::tool\n tessera-replay with recipes of your own. */")
    text.append("/** \\namespace tessera::literals\n Sizes, as in 5_MiB. */")
    for part in ("MAJOR", "MINOR", "PATCH"):
        text.append(f"/** \\def TESSERA_VERSION_{part}\n A part of the version, for the preprocessor. */")
    for example in examples():
        shown = dict(re.findall(r"^\| \[[^]]*\]\(([^()]*)\) \| (.*) \|$", (EXAMPLES / "README.md").read_text(), re.M))
        what = re.sub(r"\[([^]]*)\]\([^()]*\)", r"\1", shown.get(name_of_example(example), ""))
        text.append(f"/** \\example {name_of_example(example)}\n \\details {what[:1].upper()}{what[1:]} */")
    path.write_text("\n\n".join(text) + "\n")


def main(folder):
    folder = pathlib.Path(folder).resolve()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    here = pathlib.Path(__file__).resolve().parent
    work = folder.with_name(folder.name + "-work")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    write_extra(work / "extra.dox")
    # Without the list of base classes: few names of the library have one, and those are in a namespace detail.
    layout = work / "layout.xml"
    subprocess.run(["doxygen", "-l", layout], check=True)
    layout.write_text(re.sub(r'(type="hierarchy" visible=)"yes"', r'\1"no"', layout.read_text()))
    version = ".".join(re.findall(r"#define TESSERA_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)\n", (HEADERS / "version.hpp").read_text()))
    images = [EXAMPLES / "playground" / "page.png", *EXAMPLES.glob("traces/*.svg")]
    settings = {
        "PROJECT_NUMBER": version,
        "OUTPUT_DIRECTORY": folder,
        "INPUT": " \\\n  ".join(f'"{path}"' for path in [*pages(), *headers(), work / "extra.dox"]),
        "INPUT_FILTER": f'"{sys.executable} {pathlib.Path(__file__).resolve()} --filter"',
        "USE_MDFILE_AS_MAINPAGE": f'"{ROOT / "README.md"}"',
        "STRIP_FROM_PATH": f'"{ROOT / "include"}" "{TOOL.parent}" "{ROOT}"',
        "STRIP_FROM_INC_PATH": f'"{ROOT / "include"}" "{TOOL.parent}"',
        "EXAMPLE_PATH": f'"{EXAMPLES}"',
        "HTML_EXTRA_FILES": " ".join(f'"{path}"' for path in images),
        "HTML_EXTRA_STYLESHEET": f'"{here / "style.css"}"',
        "LAYOUT_FILE": f'"{layout}"',
        "WARN_LOGFILE": f'"{work / "warnings"}"',
    }
    text = (here / "Doxyfile").read_text() + "\n".join(f"{name} = {value}" for name, value in settings.items()) + "\n"
    (work / "Doxyfile").write_text(text)
    subprocess.run(["doxygen", work / "Doxyfile"], check=True)

    finish.tidy(folder)
    finish.add_to_search(folder, headings())

    # Doxygen repeats some warnings, and those of a template for each class that derives from it.
    lines = [line.replace(f"{ROOT}/", "") for line in (work / "warnings").read_text().split("\n") if "warning:" in line]
    warnings = list({re.sub(r" of (class|struct) .* is not", " is not", line): line for line in lines}.values())
    without = [line for line in warnings if line.endswith("is not documented.")]
    faults = [line for line in warnings if line not in without]
    # Doxygen does not say that it gave up in the middle of a page.
    for page in sorted(folder.glob("*.html")):
        left = re.search(r"@(section|subsection|code|endcode|ref)\b|&lt;/?tt&gt;", re.sub(r"(?s)<div class=\"fragment\">.*?</div><!-- fragment -->",
                                                                                          "", page.read_text()))
        if left:
            faults.append(f"{page.name}: warning: doxygen left {left[0]} in the text")
    public = {reference(name) for name in public_names()}
    members = [line for line in without if re.search(r" of (class|struct|concept) ", line)
               or (" Compound " in line and re.search(r"Compound (\S+)", line)[1] not in public)]
    names = [line for line in without if line not in members]
    print("\n".join(names + members + faults))
    print(f"without a comment: {len(names)} names of namespaces, {len(members)} members of types; {len(faults)} faults in the text")
    print(f"the site is {folder}/index.html")
    return 1 if faults or without else 0


PUBLIC = public_names()
PAGES = set(pages())
SHOWN = set(examples())
SITED = set(headers())
if __name__ == "__main__":
    if sys.argv[1:2] == ["--filter"]:
        file = pathlib.Path(sys.argv[2]).resolve()
        convert = {".md": markdown, ".hpp": header}.get(file.suffix, pathlib.Path.read_text)
        sys.stdout.write(convert(file))
    elif len(sys.argv) == 2:
        sys.exit(main(sys.argv[1]))
    else:
        sys.exit(__doc__)
