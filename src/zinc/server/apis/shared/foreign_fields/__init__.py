"""Request fields that other servers define: translated, refused or ignored."""
