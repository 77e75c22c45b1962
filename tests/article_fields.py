"""Fields of users and articles, for the specs of tests."""

ARTICLE_FIELDS = """
[fields.article]
number = 1
transform = "id"
source = "article_id"

[fields.user]
number = 2
transform = "id"
source = "user_id"

[fields.user_article]
number = 3
transform = "cross"
of = ["user", "article"]
"""
