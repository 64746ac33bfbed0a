"""What came of reading somebody else's schedules."""

from collections.abc import Mapping, Sequence

import msgspec

from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.runs.names import MAX_NAME
from mainspring.features.schedules import file as schedule_file


class Untranslatable(Exception):
    """There is nothing here that means the same. The message says why."""


class Translated(msgspec.Struct, frozen=True, kw_only=True):
    #: The line or entry it came from.
    where: str
    name: str
    #: As in the schedules file.
    fields: Mapping[str, object]
    #: Where its meaning changes.
    warnings: Sequence[str]


class Refused(msgspec.Struct, frozen=True, kw_only=True):
    where: str
    what: str
    why: str


class Conversion:
    """Collects entries, checks each as the schedules file will, and keeps their names apart."""

    def __init__(self) -> None:
        self.translated: list[Translated] = []
        self.refused: list[Refused] = []
        #: What holds for all of it.
        self.notes: list[str] = []
        self._names: set[str] = set()

    def add(self, where: str, fields: Mapping[str, object], warnings: Sequence[str] = ()) -> None:
        asked = str(fields["name"]).strip()[: MAX_NAME - 5]
        name = asked
        number = 1
        while name in self._names:
            number += 1
            name = f"{asked}-{number}"
        complete = {**fields, "name": name}
        try:
            schedule_file.check(complete)
        except Invalid as error:
            self.refuse(where, asked, str(error))
            return
        # As the file will say it: an enum, a tuple or a time of another library's is plain JSON from here on.
        complete = msgspec.json.decode(msgspec.json.encode(complete))
        self._names.add(name)
        changed = [f"named {name}: {asked} is taken"] if name != asked else []
        self.translated.append(Translated(where=where, name=name, fields=complete, warnings=[*warnings, *changed]))

    def refuse(self, where: str, what: str, why: str) -> None:
        self.refused.append(Refused(where=where, what=what, why=why))

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)
