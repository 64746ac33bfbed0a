"""Dependent objects and grants: what other roles have tied to a schema."""

from collections.abc import Sequence
from typing import TypeAlias

import asyncpg
import msgspec

Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"

# What DROP SCHEMA would drop although it is not the store's, such as views and foreign tables in the schema. Objects in
# pg_toast belong to the tables; default privileges are granted again.
_DEPENDANTS = """
WITH RECURSIVE tied AS (
    SELECT d.classid, d.objid FROM pg_depend d
    WHERE d.refclassid = 'pg_namespace'::regclass AND d.refobjid = to_regnamespace($1)
    UNION
    SELECT d.classid, d.objid FROM tied t JOIN pg_depend d ON d.refclassid = t.classid AND d.refobjid = t.objid
)
SELECT DISTINCT o.type || ' ' || o.identity AS name
FROM tied t, pg_identify_object(t.classid, t.objid, 0) AS o,
     pg_identify_object_as_address(t.classid, t.objid, 0) AS a
WHERE o.type <> 'default acl' AND (
    coalesce(o.schema, a.object_names[1]) NOT IN ($1, 'pg_toast')
    OR o.type IN ('view', 'materialized view', 'foreign table') OR o.type LIKE 'publication %')
ORDER BY 1
"""
# ``part`` is the name of a column. Losing a grant on a partition takes no read access: the parent's grants count.
_OBJECTS = """
SELECT 'SCHEMA' AS kind, quote_ident(n.nspname) AS object, '' AS part, n.nspacl AS acl, n.nspowner AS owner
FROM pg_namespace n WHERE n.nspname = $1
UNION ALL
SELECT CASE c.relkind WHEN 'S' THEN 'SEQUENCE' ELSE 'TABLE' END, format('%I.%I', $1::text, c.relname), '', c.relacl,
       c.relowner
FROM pg_class c WHERE c.relnamespace = to_regnamespace($1) AND c.relkind IN ('r', 'p', 'S')
UNION ALL
SELECT 'TABLE', format('%I.%I', $1::text, c.relname), quote_ident(a.attname), a.attacl, c.relowner
FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
WHERE c.relnamespace = to_regnamespace($1) AND c.relkind IN ('r', 'p')
UNION ALL
SELECT 'ROUTINE', format('%I.%I(%s)', $1::text, p.proname, pg_get_function_identity_arguments(p.oid)), '', p.proacl,
       p.proowner
FROM pg_proc p WHERE p.pronamespace = to_regnamespace($1)
"""
# The store's own reader roles get their grants when they are needed.
_GRANTS = f"""
SELECT o.kind, o.object, o.part, a.privilege_type AS privilege, a.is_grantable,
       CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(r.rolname) END AS grantee, NULL AS by_role
FROM ({_OBJECTS}) AS o, aclexplode(o.acl) AS a LEFT JOIN pg_roles r ON r.oid = a.grantee
WHERE a.grantee <> o.owner AND (a.grantee = 0 OR r.rolname !~ '^mainspring_reader_')
UNION ALL
SELECT CASE d.defaclobjtype WHEN 'r' THEN 'TABLES' WHEN 'S' THEN 'SEQUENCES' WHEN 'f' THEN 'ROUTINES' ELSE 'TYPES' END,
       quote_ident($1), '', a.privilege_type, a.is_grantable,
       CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(r.rolname) END, quote_ident(o.rolname)
FROM pg_default_acl d JOIN pg_roles o ON o.oid = d.defaclrole, aclexplode(d.defaclacl) AS a
LEFT JOIN pg_roles r ON r.oid = a.grantee
WHERE d.defaclnamespace = to_regnamespace($1) AND a.grantee <> d.defaclrole AND (a.grantee = 0 OR r.oid IS NOT NULL)
"""


class Grant(msgspec.Struct, frozen=True):
    """A privilege that a role was granted."""

    kind: str
    object: str
    part: str
    privilege: str
    is_grantable: bool
    grantee: str
    #: For future objects of this role in the schema; None: for an existing object.
    by_role: str | None

    def statement(self) -> str:
        privilege = f"{self.privilege} ({self.part})" if self.part else self.privilege
        option = " WITH GRANT OPTION" if self.is_grantable else ""
        if self.by_role is None:
            return f"GRANT {privilege} ON {self.kind} {self.object} TO {self.grantee}{option}"
        makes = f"ALTER DEFAULT PRIVILEGES FOR ROLE {self.by_role} IN SCHEMA {self.object}"
        return f"{makes} GRANT {privilege} ON {self.kind} TO {self.grantee}{option}"


async def list_dependent_objects(connection: Connection, schema: str) -> list[str]:
    """Return the objects of others that would be dropped with the schema."""
    return [row["name"] for row in await connection.fetch(_DEPENDANTS, schema)]


async def list_grants(connection: Connection, schema: str) -> list[Grant]:
    """Return the privileges of roles other than the owner on the schema and on its objects."""
    return [Grant(**row) for row in await connection.fetch(_GRANTS, schema)]


async def grant_again(connection: Connection, schema: str, grants: Sequence[Grant]) -> None:
    """Grant privileges again, except on objects that no longer exist."""
    rows = await connection.fetch(f"SELECT kind, object, part FROM ({_OBJECTS}) AS o", schema)
    there = {(row["kind"], row["object"], row["part"]) for row in rows}
    for grant in grants:
        if grant.by_role is not None or (grant.kind, grant.object, grant.part) in there:
            await connection.execute(grant.statement())
