-- Open the transaction of a function in a database whose transactions are serializable.
BEGIN ISOLATION LEVEL SERIALIZABLE
