-- The newest migration that the database has.
SELECT version_num FROM relay_alembic_version
