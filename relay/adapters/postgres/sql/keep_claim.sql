-- Have the time that a claim may idle begin anew. Fails when the claim is lost.
SELECT 1
