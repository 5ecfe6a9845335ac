"""What the APIs share: request fields, prompts, chat answers, and how work is answered."""
