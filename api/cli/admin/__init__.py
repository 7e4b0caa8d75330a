"""`compactor-admin`: a running service from the command line, over HTTP alone.

Must not know: the store, the database, Spark. It imports the error kinds, topic names and the kit of both command
lines, and nothing else of this project, so that it starts as quickly as a shell expects.
"""
