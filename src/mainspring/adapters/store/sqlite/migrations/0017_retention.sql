-- Classes of retention. retention: the class of a run that is not of the standard one; the indexes by age are apart, so that
-- what is kept for long is not looked at whenever the rest is pruned.
ALTER TABLE history ADD COLUMN retention TEXT;
CREATE INDEX history_class ON history (retention, finished_at) WHERE retention IS NOT NULL;
CREATE INDEX history_standard_succeeded ON history (finished_at) WHERE state = 'succeeded' AND retention IS NULL;
CREATE INDEX history_standard_unsuccessful ON history (finished_at) WHERE state <> 'succeeded' AND retention IS NULL;
DROP INDEX history_succeeded;
