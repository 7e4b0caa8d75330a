"""Pages for browsers: see pages.py."""

from api.dashboard import changes, login, pages

DASHBOARD_ROUTERS = (pages.router, changes.router, login.router)
