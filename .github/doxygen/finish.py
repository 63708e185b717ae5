# SPDX-License-Identifier: Apache-2.0
"""Changes the pages that doxygen wrote, in what it has no setting for."""

import html
import json
import re
from typing import NamedTuple


# Pages


def without_links(fragment):
    """Code without the links that doxygen guessed: a local variable may have the name of a function in an inner namespace."""
    guessed = r'(?<!::)<a class="code hl_(?:function|variable|enumvalue)" href="namespacetessera_1_1\w+\.html#\w+">(\w+)</a>'
    return re.sub(guessed, r"\1", fragment)




def without_links_of_parameters(page):
    """Lists of members in which the name of a parameter is no link to a function of that name."""
    name = r'(?<!const )(?<!typename )(&amp;|\*|&gt; |</a> |\w )<a class="el" href="[^"]*">(\w+)</a>(?=[,)=])'
    return re.sub(r'<td class="mem(?:Templ)?ItemRight".*', lambda row: re.sub(name, r"\1\2", row[0]), page)


def without_hidden(page):
    """Drops overridden members from the lists of inherited ones, nested types without a page, and types in namespaces detail."""
    own = set(re.findall(r'<tr class="memitem:\w+"><td.*?<a class="el" href="[^"]*">(\w+)</a>(?:&#160;| )?\(', page))
    inherited = r'(?:<tr class="memitem:\w+ inherit [^"]*">.*\n)(?:<tr class="(?:memdesc|separator):\w+ inherit .*\n)*'
    template = r'(?:<tr class="memitem:\w+ inherit [^"]*"><td class="memTemplParams".*\n)?'

    def keep(found):
        name = re.search(r'<td class="mem(?:Templ)?ItemRight" valign="bottom">.*?<a class="el" href="[^"]*">(\w+)</a>', found[0])
        return "" if name and name[1] in own else found[0]

    page = re.sub(template + inherited, keep, page)
    page = re.sub(r'<tr class="inherit_header ([^"]*)">.*\n(?!<tr class="memitem:\w+ inherit \1)', "", page)
    page = re.sub(r'<tr class="memitem:"><td [^>]*>(?:class|struct) &#160;</td><td [^>]*><b>.*\n(?:<tr class="(?:memdesc|separator):".*\n)*', "", page)
    page = re.sub(r"(using\b.*?) =(?: |&#160;)+(?:typename )?detail::.*?(?=</td>)", r"\1", page)
    return page


def without_dead_anchors(page):
    """Drops links of the summary to lists that the page does not have."""
    return re.sub(r'<a href="#([\w-]+)">[^<]*</a>(?: &#124;\n)?', lambda found: found[0] if f'id="{found[1]}"' in page else "", page)


def tidy(folder):
    for path in folder.glob("*.html"):
        text = path.read_text()
        page = text
        if not path.name.endswith("_8hpp_source.html"):
            page = re.sub(r'<div class="fragment">.*?</div><!-- fragment -->', lambda found: without_links(found[0]), page, flags=re.S)
        if re.match(r"(class|struct|namespace)", path.name):
            page = without_dead_anchors(without_hidden(without_links_of_parameters(page)))
        if page != text:
            path.write_text(page)


# Search


class Section(NamedTuple):
    heading: str
    page: str  # its title
    url: str
    text: str


COMMON = set("""a about all an and are as at be but by can do does each every for from has have how i if in into is it its may me my no not
of on one or other our so than that the their them then there these they this to two was what when where which while who with without
you your""".split())

# A word of a text is indexed if no more sections than this have it. Others, such as PyTorch, are everywhere.
FEW = 16


def id_of(text):
    """The key of a row, as search.js makes it of what the reader types."""
    return re.sub(r"[^a-z0-9\u0080-\uffff]", lambda c: f"_{ord(c[0]):02x}", text.lower())


def entries(sections):
    """The rows that find sections: by each word of a heading with those after it, and by the rarer words of the text."""
    rows = []
    named = {}
    for section in sections:
        shown = html.escape(section.heading)
        for word in re.finditer(r"\w+", section.heading):
            if word[0].lower() not in COMMON:
                where = "" if section.heading == section.page else html.escape(section.page)
                rows.append((section.heading[word.start():], [shown, [f"../{section.url}", 1, where]]))
        # Words with a _ are names of the library, which doxygen's own rows find.
        words = {word.lower(): word for word in re.findall(r"\b[A-Za-z][A-Za-z0-9]{3,}\b", section.text)}
        for key, word in words.items():
            entry = named.setdefault(key, [word, []])
            entry[0] = max(entry[0], word, key=lambda text: sum(map(str.isupper, text)))
            entry[1].append(section)
    for key, (name, where) in named.items():
        if len(where) <= FEW and key not in COMMON:
            links = [[f"../{section.url}", 1, html.escape(section.heading)] for section in where]
            rows.append((name, [html.escape(name), *links]))
    return sorted(rows, key=lambda row: row[0].lower())


def add_to_search(folder, sections):
    """Adds the sections to the files of doxygen's search that hold all names and those of pages."""
    search = folder / "search"
    index = (search / "searchdata.js").read_text()
    found = re.search(r"indexSectionsWithContent =\s*\{(.*?)\}", index, re.S)[1]
    first_letters = {int(number): letters for number, letters in re.findall(r'(\d+): "([^"]*)"', found)}
    names = dict(re.findall(r'(\d+): "([^"]*)"', re.search(r"indexSectionNames =\s*\{(.*?)\}", index, re.S)[1]))
    new = entries(sections)
    for number, name in names.items():
        if name not in ("all", "pages"):
            continue
        letters = first_letters[int(number)]
        for letter in sorted({row[0][0].lower() for row in new}):
            if letter not in letters:
                letters += letter
                file = search / f"{name}_{len(letters) - 1:x}"
                file.with_suffix(".html").write_text((search / f"{name}_0.html").read_text().replace(f"{name}_0.js", file.name + ".js"))
                file.with_suffix(".js").write_text("var searchData=\n[\n];\n")
            file = search / f"{name}_{letters.index(letter):x}.js"
            text = file.read_text()
            rows = [json.dumps([f"{id_of(key)}_p{n}", value]) for n, (key, value) in enumerate(new) if key[0].lower() == letter]
            body = text.rstrip().removesuffix("];").rstrip()
            file.write_text(body + ("" if body.endswith("[") else ",") + "\n  " + ",\n  ".join(rows) + "\n];\n")
        index = index.replace(f'{number}: "{first_letters[int(number)]}"', f'{number}: "{letters}"', 1)
    (search / "searchdata.js").write_text(index)
