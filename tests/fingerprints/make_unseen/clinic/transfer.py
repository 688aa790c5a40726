import ftplib
import imaplib
import io
import socket

import paramiko


class GaveUp(Exception):
    pass


def again(work, times=2): #new
    for attempt in range(1, times + 1): #new
        try: #new
            return work() #new
        except OSError: #new
            if attempt == times: #new
                raise #new


def open_ssh(host, port, user, password):
    client = paramiko.SSHClient()
    client.set_missing_host_key_policy(paramiko.AutoAddPolicy())
    client.connect(host, port=port, username=user, password=password, look_for_keys=False, allow_agent=False, banner_timeout=2, timeout=3)
    return client


def upload_report(host, port, user, password, name):
    client = open_ssh(host, port, user, password) #old
    client = again(lambda: open_ssh(host, port, user, password)) #new
    sftp = client.open_sftp()
    with sftp.open("/in/%s" % name, "wb") as remote:
        remote.write(b"report")


def ftp_put(host, port, user, name):
    ftp = ftplib.FTP()
    ftp.connect(host, port, timeout=3)
    ftp.login(user, "geheim")
    ftp.storbinary("STOR %s" % name, io.BytesIO(b"x" * 10))


def read_mail(port, user, folder):
    box = imaplib.IMAP4("127.0.0.1", port)
    box.login(user, "geheim")
    kind, data = box.select(folder)
    if kind != "OK":
        raise GaveUp("mailbox %s of %s cannot be opened: %s" % (folder, user, data[0].decode()))


def listen(port):
    door = socket.socket()
    door.bind(("127.0.0.1", port))
    door.listen()


def deliver(port, user, name):
    """Three attempts, then the last error is told in our own words."""
    last = None
    for attempt in range(3):
        try:
            return ftp_put("127.0.0.1", port, user, name)
        except ftplib.Error as error:
            last = error
    raise GaveUp(f"{name}: gave up after {attempt + 1} attempts") from last
