"""Request fields that other servers define: mapped, refused or ignored."""
