"""The result of converting schedules of another scheduler."""

from collections.abc import Mapping, Sequence

import msgspec

from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.runs.names import MAX_NAME
from mainspring.features.schedules import file as schedule_file


class UntranslatableError(Exception):
    """An entry has no equivalent here. The message says why."""


class TranslatedEntry(msgspec.Struct, frozen=True, kw_only=True):
    #: The line or entry of the original.
    where: str
    name: str
    #: The fields as written in the schedules file.
    fields: Mapping[str, object]
    #: Differences in meaning.
    warnings: Sequence[str]


class RefusedEntry(msgspec.Struct, frozen=True, kw_only=True):
    where: str
    what: str
    why: str


class Conversion:
    """Collects converted entries, validates each like the schedules file, and makes their names unique."""

    def __init__(self) -> None:
        self.translated: list[TranslatedEntry] = []
        self.refused: list[RefusedEntry] = []
        #: Notes that apply to the whole conversion.
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
            schedule_file.check_entry(complete)
        except Invalid as error:
            self.refuse(where, asked, str(error))
            return
        # Normalize to plain JSON, as in the file: enums, tuples and times of other libraries are gone from here on.
        complete = msgspec.json.decode(msgspec.json.encode(complete))
        self._names.add(name)
        changed = [f"renamed to {name}: {asked} is already used"] if name != asked else []
        self.translated.append(TranslatedEntry(where=where, name=name, fields=complete, warnings=[*warnings, *changed]))

    def refuse(self, where: str, what: str, why: str) -> None:
        self.refused.append(RefusedEntry(where=where, what=what, why=why))

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)
