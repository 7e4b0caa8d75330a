"""What must be atomic: topics, ledgers, cursors, runs and leases, in one SQL database.

The only place of SQL. `store.MetadataStore` is the way in, `records` are the values that come out.
"""
