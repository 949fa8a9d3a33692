-- The rules of time that jobs were computed with, so that another tzdata can tell what it changes.
CREATE TABLE zone_rules (
    tzdata_version text,
    zone           text,
    tzif           bytea NOT NULL,
    PRIMARY KEY (tzdata_version, zone)
);
