-- One database for each context, made when the data volume is new.
CREATE DATABASE vibespro;
CREATE DATABASE sea;
