"""Code shared by the APIs: request fields, prompts, chat answers, and how a request is answered."""
