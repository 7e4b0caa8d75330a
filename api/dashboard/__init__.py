"""Pages for browsers: see pages.py."""

from api.dashboard import changes, login, other_paths, pages, subscription_page, topic_changes

DASHBOARD_ROUTERS = (
    pages.router,
    changes.router,
    topic_changes.router,
    subscription_page.router,
    login.router,
    other_paths.router,
)
