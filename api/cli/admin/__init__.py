"""`compactor-admin`: a running service from the command line, over HTTP alone.

Must not know: the store, the database, Spark. Nothing here imports more of this project than the error kinds, topic
names and what the other command line says alike, so that it starts as quickly as a shell expects.
"""
