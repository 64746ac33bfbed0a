-- expand
-- One of several servers of a store: which one it is, what it has, and what is on its way to another.
-- Where a store has one server there is no row in any of these.

CREATE TABLE server (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    set_id   uuid NOT NULL,                   -- the store that it is a part of
    number   smallint NOT NULL
);

-- All places of the store. The version grows with every move.
CREATE TABLE place (
    id      smallint PRIMARY KEY,
    here    boolean NOT NULL,
    version bigint NOT NULL
);

-- Places that have left, with all their rows, until the other server has taken them in.
CREATE TABLE departure (
    place   smallint PRIMARY KEY,
    target  smallint NOT NULL,
    version bigint NOT NULL
);
CREATE TABLE departed (
    place  smallint NOT NULL,
    number integer NOT NULL,
    kind   text NOT NULL,                     -- a table
    rows   jsonb NOT NULL,
    PRIMARY KEY (place, number)
);

-- As domain/placement.py has them.
CREATE FUNCTION place_of(id uuid, places integer) RETURNS integer LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$ SELECT (((get_byte(uuid_send(id), 8) << 8) | get_byte(uuid_send(id), 9)) & 16383) % places $$;
CREATE FUNCTION place_for(tenant text, places integer) RETURNS integer LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$ SELECT (('x' || left(encode(sha256(convert_to(tenant, 'UTF8')), 'hex'), 8))::bit(32)::bigint % places)::integer $$;

-- Called by triggers that are made when a server becomes one of several, and anew with every move. Their condition is the
-- list of the shards that are not here, so that a row which is at home costs next to nothing.
CREATE FUNCTION refuse_elsewhere() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'its place is on another server' USING ERRCODE = 'MS010';
END $$;
CREATE FUNCTION refuse_tenant_elsewhere() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    IF NOT EXISTS (
        SELECT FROM place p, name n
        WHERE n.id = NEW.tenant AND p.here AND p.id = place_for(n.name, (SELECT count(*)::integer FROM place))
    ) THEN
        RAISE EXCEPTION 'its place is on another server' USING ERRCODE = 'MS010';
    END IF;
    RETURN NEW;
END $$;
