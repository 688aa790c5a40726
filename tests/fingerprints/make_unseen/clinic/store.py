import elasticsearch
import mysql.connector
import pymysql


def search(port, index, words):
    es = elasticsearch.Elasticsearch(f"http://127.0.0.1:{port}", max_retries=0)
    return es.search(index=index, body={"query": {"match": {"text": words}}})


def admit(port, email, number):
    db = pymysql.connect(host="127.0.0.1", port=port, user="clinic", password="", database="clinic")
    with db.cursor() as cursor:
        cursor.execute("INSERT INTO patients (email, number) VALUES (%s, %s)", (email, number))
    db.commit()


def discharge(port, patient, tenant="nord"):
    db = mysql.connector.connect(host="127.0.0.1", port=port, user="clinic", password="", database=tenant, use_pure=True, ssl_disabled=True)
    cursor = db.cursor()
    cursor.execute("UPDATE beds SET patient = NULL WHERE patient = %d" % patient)
    db.commit()
